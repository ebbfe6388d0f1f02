"""What models are made of: layers, kernels, dropout, losses, optimizers. Knows no data."""
