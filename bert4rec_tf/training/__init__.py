"""Training: the step, calls of several steps, the loop, checkpoints, TensorBoard and several machines."""
