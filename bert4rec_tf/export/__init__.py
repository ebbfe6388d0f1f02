"""A trained model becomes files: SavedModel, ONNX, LiteRT."""
