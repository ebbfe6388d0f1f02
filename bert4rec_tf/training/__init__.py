"""Training: the loop, its steps, checkpoints and curves."""
