"""What lies where in the folder of an exported model."""

from pathlib import Path

SAVED_MODEL = "saved_model"
FORMATS = (SAVED_MODEL, "onnx", "litert")
"""What a trained model can be exported as. Its folder in a work directory has that name too."""

MODEL = "saved_model.pb"
"""The file by which TensorFlow, and so everybody here, knows the folder of a SavedModel."""

VOCABULARY, USERS = "vocabulary.txt", "users.txt"
"""Raw ids, one a line: of items, line i for item i, and of users, line u + 1 for user u."""

ASSETS = "assets"
"""Where in a SavedModel those two lie."""

CARD = "model_card.json"

CARD_OF_SAVED_MODEL = Path("assets.extra", CARD)
"""TensorFlow leaves that folder of a SavedModel to the user."""
