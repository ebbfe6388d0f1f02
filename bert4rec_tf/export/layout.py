"""Names of the files in the folder of an exported model."""

from pathlib import Path

SAVED_MODEL = "saved_model"
FORMATS = (SAVED_MODEL, "onnx", "litert")
"""What a trained model can be exported as. Its folder in a work directory has that name too."""

MODEL = "saved_model.pb"
"""A folder is a SavedModel if it holds this file."""

VOCABULARY, USERS = "vocabulary.txt", "users.txt"
"""Raw ids, one per line: line i for item i, and line u + 1 for user u."""

ASSETS = "assets"
"""The folder of these two files in a SavedModel."""

CARD = "model_card.json"

CARD_OF_SAVED_MODEL = Path("assets.extra", CARD)
"""TensorFlow reserves the folder `assets.extra` for the user's own files."""
