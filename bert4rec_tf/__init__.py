"""BERT4Rec in TensorFlow/Keras, faithful to the authors' program.

The names below are what a notebook needs. They are imported when first used, so that `import bert4rec_tf` is quick.
"""

import importlib

import wrapt

from bert4rec_tf.foundation import registration

__version__ = "0.2.0"

_PUBLIC = {
    "BERT4Rec": "bert4rec_tf.models",
    "Bert4RecWarning": "bert4rec_tf.foundation.warning",
    "DataNote": "bert4rec_tf.foundation.warning",
    "DataWarning": "bert4rec_tf.foundation.warning",
    "FileWarning": "bert4rec_tf.foundation.warning",
    "FittedModel": "bert4rec_tf.notebook.fitted",
    "Interactions": "bert4rec_tf.config.data_names",
    "MODELS": "bert4rec_tf.models",
    "Recommender": "bert4rec_tf.models",
    "Run": "bert4rec_tf.config.run_record",
    "Sequences": "bert4rec_tf.data.sequences",
    "ServingWarning": "bert4rec_tf.foundation.warning",
    "Settings": "bert4rec_tf.config.setting_fields",
    "TrainingWarning": "bert4rec_tf.foundation.warning",
    "UnknownIdWarning": "bert4rec_tf.foundation.warning",
    "UserError": "bert4rec_tf.foundation.errors",
    "Vocabulary": "bert4rec_tf.data.sequences",
    "compare": "bert4rec_tf.notebook.fitting",
    "cross_validate": "bert4rec_tf.notebook.fitting",
    "execute": "bert4rec_tf.runs.experiment",
    "fit": "bert4rec_tf.notebook.fitting",
    "interactions": "bert4rec_tf.data.reading.tables",
    "load": "bert4rec_tf.data.sources.datasets",
    "make_run": "bert4rec_tf.config.presets",
    "open": "bert4rec_tf.notebook.fitted",
    "open_experiment": "bert4rec_tf.runs.experiment",
    "register": "bert4rec_tf.models",
    "setting": "bert4rec_tf.config.setting_fields",
    "with_features": "bert4rec_tf.data.reading.feature_files",
}
_MODULES = ("datasets", "layers", "losses", "metrics")

__all__ = sorted([*_PUBLIC, *_MODULES])
wrapt.register_post_import_hook(registration.register, "keras")  # when it is imported, which takes seconds


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module 'bert4rec_tf' has no attribute {name!r}")
    module = _PUBLIC.get(name, f"bert4rec_tf.{name}")
    if module.split(".")[1] in ("models", "notebook", "runs", *_MODULES):
        importlib.import_module("bert4rec_tf.foundation.startup").import_tensorflow()
    imported = importlib.import_module(module)
    return imported if name in _MODULES else getattr(imported, name)


def __dir__() -> list[str]:
    return __all__
