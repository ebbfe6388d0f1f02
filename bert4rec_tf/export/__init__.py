"""Exports a trained model as a SavedModel, ONNX or LiteRT."""
