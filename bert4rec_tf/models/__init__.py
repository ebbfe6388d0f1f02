"""MODELS: name -> class."""

import dataclasses
import inspect
import re

import keras

from bert4rec_tf.config import presets
from bert4rec_tf.config.execution import ExecutionSettings
from bert4rec_tf.config.model_settings import MODEL_SETTINGS
from bert4rec_tf.config.run_record import EvaluationSettings, MaskingSettings, Run, TrainingSettings
from bert4rec_tf.config.setting_fields import Settings, check_declaration
from bert4rec_tf.data.examples.in_memory import EXAMPLE_KINDS
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.models.bert4rec import BERT4Rec
from bert4rec_tf.models.bpr_mf import BprMf
from bert4rec_tf.models.caser import Caser
from bert4rec_tf.models.ensemble import Ensemble
from bert4rec_tf.models.fpmc import Fpmc
from bert4rec_tf.models.gru4rec import GRU4Rec, GRU4RecPlus
from bert4rec_tf.models.item_transitions import ItemTransitions
from bert4rec_tf.models.ncf import Ncf
from bert4rec_tf.models.pop import Pop
from bert4rec_tf.models.recommender import KERAS_OPTIONS, Recommender
from bert4rec_tf.models.sasrec import SASRec

_BY_SETTINGS: dict[type[Settings], type[Recommender]] = {
    kind.settings_type: kind
    for kind in (
        *(Pop, BprMf, Ncf, Fpmc, GRU4Rec, GRU4RecPlus, Caser, SASRec, BERT4Rec),
        *(ItemTransitions, Ensemble),
    )
}
MODELS: dict[str, type[Recommender]] = {name: _BY_SETTINGS[settings] for name, settings in MODEL_SETTINGS.items()}

ARGUMENTS = (
    *("data", "user", "item", "time", "test_from", "source", "size", "model", "models", "preset", "holdout", "by"),
    *("attributes", "titles", "item_features", "user_features", "new_items", "init_from", "workdir", "callbacks"),
    *("silent", "minutes", "tune", "folds", "test_days", "more", "train"),
)
"""What the functions that take settings take beside them."""

TAKEN = {
    *(*ARGUMENTS, *KERAS_OPTIONS, *inspect.signature(Recommender).parameters),
    *(
        field.name
        for group in (Run, MaskingSettings, TrainingSettings, EvaluationSettings, ExecutionSettings)
        for field in dataclasses.fields(group)
    ),
}
"""Names that no setting of a model may have: a run puts one value into every group that has its name."""


def register(kind: type[Recommender]) -> type[Recommender]:
    """Makes a model of your own known by its class's name, `MeanOfHistory` as "mean_of_history". Returns the class.

    Examples:
        >>> @b4r.register
        ... class MeanOfHistory(b4r.Recommender): ...
        >>> b4r.fit(frame, model="mean_of_history")  # or model=MeanOfHistory

    Raises UserError if it is no `Recommender` with a `settings_type`, a field of this is no `setting` or has a taken
    name, its `examples` are of no known kind, a method is missing, or another model has this name.
    """
    if not (isinstance(kind, type) and issubclass(kind, Recommender)):
        raise UserError(f"`model` must be a name or a subclass of `b4r.Recommender`. Received: {kind!r}")
    if kind in MODELS.values():
        return kind
    settings = getattr(kind, "settings_type", None)
    if settings is None or not issubclass(settings, Settings):
        raise UserError(f"`settings_type` of {kind.__name__} must be a dataclass based on `b4r.Settings`")
    check_declaration(settings)
    for field in dataclasses.fields(settings):
        if field.name in TAKEN:
            raise UserError(
                f"`{field.name}` of {settings.__name__} must have another name: a run or `fit` has this one"
            )
    has_loss = kind.training_loss is not Recommender.training_loss
    if kind.examples not in (*EXAMPLE_KINDS, *(() if has_loss else (None,))):
        choices = f"{'' if has_loss else 'None or '}one of {', '.join(map(repr, EXAMPLE_KINDS))}"
        raise UserError(f"`examples` of {kind.__name__} must be {choices}. Received: {kind.examples!r}")
    methods = [("user_vectors",), ("score_products", "score_vectors"), ("training_loss",)]
    for alternatives in methods[: 3 if kind.examples else 2]:
        if all(getattr(kind, name) is getattr(Recommender, name) for name in alternatives):
            raise UserError(f"{kind.__name__} must define {' or '.join(map('`{}`'.format, alternatives))}")
    name, full_name = find_name(kind), f"{kind.__module__}.{kind.__qualname__}"
    entry = MODELS.get(name)
    if entry is not None and f"{entry.__module__}.{entry.__qualname__}" != full_name:
        raise UserError(f"{kind.__name__} must have another name: {entry.__name__} is known as {name!r}")
    keras.saving.register_keras_serializable(package="own")(kind)
    MODELS[name], MODEL_SETTINGS[name] = kind, settings
    presets.add_own_model(name, is_trained=kind.examples is not None)
    return kind


def find_name(kind: type[Recommender]) -> str:
    """Returns the name in MODELS of a class, whether it is registered or not."""
    names = (name for name, entry in MODELS.items() if entry is kind)
    return next(names, re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower())


def resolve_name(model: str | type[Recommender]) -> str:
    """Returns the name of a model, and registers a class that is not known yet."""
    return str(model) if isinstance(model, str) else find_name(register(model))
