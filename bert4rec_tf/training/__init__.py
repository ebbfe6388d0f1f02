"""Training: the loop, the compiled step, checkpoints and TensorBoard."""
