"""BERT4Rec in TensorFlow/Keras, faithful to the authors' program.

The names below are what a notebook needs. They are imported when first used, so that `import bert4rec_tf` is quick.
"""

import importlib

__version__ = "0.1.0"

_PUBLIC = {
    "BERT4Rec": "bert4rec_tf.models",
    "Interactions": "bert4rec_tf.origins",
    "MODELS": "bert4rec_tf.models",
    "Run": "bert4rec_tf.config",
    "Sequences": "bert4rec_tf.sequences",
    "UserError": "bert4rec_tf.errors",
    "Vocabulary": "bert4rec_tf.sequences",
    "execute": "bert4rec_tf.pipeline",
    "load": "bert4rec_tf.data.datasets",
    "make_run": "bert4rec_tf.presets",
    "open_experiment": "bert4rec_tf.pipeline",
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str):
    if name not in _PUBLIC:
        raise AttributeError(f"module 'bert4rec_tf' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
