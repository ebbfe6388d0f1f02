"""What every room stands on: errors, files that appear whole, progress, signals. Knows nothing of models or data."""
