"""What a trained model becomes outside this package."""
