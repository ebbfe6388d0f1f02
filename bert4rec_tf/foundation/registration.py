"""Lets Keras load files with classes of this package before any module that defines them is imported."""

import importlib
import sys
from types import ModuleType
from typing import Any

PACKAGE = "bert4rec_tf"
CLASSES = {
    "models": (
        *("BERT4Rec", "BprMf", "Caser", "CausalBlock", "Ensemble", "Fpmc", "GRU4Rec", "GRU4RecPlus"),
        *("ItemTransitions", "Ncf", "Pop", "SASRec", "TransitionEvidence"),
    ),
    "layers": (
        *("Dropout", "FeedForward", "MaskedItemHead", "MultiHeadAttention", "PositionEmbedding", "Residual"),
        "TransformerBlock",
    ),
    "losses": ("BPR", "BPRMax", "BinaryCrossEntropy", "SoftmaxCrossEntropy", "TOP1", "TOP1Max"),
    "metrics": ("HitRate", "MRR", "NDCG"),
    "nn.optimizers": ("Adagrad", "BertAdam", "RowwiseAdagrad", "WarmUpLinearDecay"),
}
"""Module -> the classes that Keras knows once it is imported."""


class StandIn:
    """Keras finds it under a class's name, and imports the module of the class when it makes an instance."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def from_config(self, config: dict[str, Any]) -> Any:
        importlib.import_module(f"{PACKAGE}.{self.module}")  # which registers the class itself
        # In nested objects, Keras looks first into a copy of this dictionary, which still has the stand-in.
        return sys.modules["keras"].saving.get_custom_objects()[f"{PACKAGE}>{self.name}"].from_config(config)


def register(keras: ModuleType) -> None:
    """Registers a stand-in for each class that is not registered itself."""
    for module, names in CLASSES.items():
        for name in names:
            keras.saving.get_custom_objects().setdefault(f"{PACKAGE}>{name}", StandIn(module, name))
