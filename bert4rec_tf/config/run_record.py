"""A run: the record of everything that decides a result; `Run.digest` names it."""

import dataclasses
import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from bert4rec_tf.config.model_settings import (
    ALL_ITEMS,
    ATTENTION_MODELS,
    COUNTING_MODELS,
    LOSSES,
    MASKED_MODELS,
    MODEL_SETTINGS,
    TRANSITIONS,
    AttentionSettings,
)
from bert4rec_tf.config.setting_fields import Settings, check_value, convert_value, describe_setting, setting
from bert4rec_tf.foundation.errors import UserError, unknown_name_error

SELECT, RETRAIN, ALL = "select", "retrain", "all"
"""The trainings, or phases: without the validation items, to select the number of steps; with them; on all actions."""

FIXED_STEPS, SELECT_AND_RETRAIN = "fixed", "select_and_retrain"
TRAININGS = {FIXED_STEPS: (RETRAIN,), SELECT: (SELECT,), SELECT_AND_RETRAIN: (SELECT, RETRAIN), ALL: (SELECT, ALL)}
"""Protocol -> its trainings, in order. The model of the last one is exported. The model of the last one other than ALL
is measured on the test items."""


@dataclass(frozen=True)
class MaskingSettings(Settings):
    """How Cloze examples are made (section 3.6 and the original's preparation)."""

    masking: str = setting(
        "static",
        "static: masks written once, the same in every epoch, as the original; dynamic: new masks in every epoch",
        choices=("static", "dynamic"),
    )
    mask_proportion: float = setting(0.2, "rho: share of the items to predict", above=0, at_most=1)
    max_predictions: int = setting(20, "the most items to predict in one example", at_least=1)
    mask_prob: float = setting(
        1.0,
        "share of the items to predict that become the mask token; half of the rest stay, half become random",
        at_least=0,
        at_most=1,
    )
    mask_copies: int = setting(
        10, "randomly masked copies of each window, beside one with its last item masked", at_least=0, at_most=10_000
    )
    prefix_copies: int = setting(
        0,
        "copies of the prefix examples: for every item but a history's first, the N - 1 items before it and the item "
        "itself masked. With them, windows have no example with only their last item masked",
        at_least=0,
        at_most=10_000,
    )
    window_step: float = setting(0.5, "windows slide over long sequences by this share of N (-1: by N)", at_most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window_step != -1 and self.window_step <= 0:
            raise UserError(f"`window_step` must be above 0, or -1. Received: window_step={self.window_step}")


def compute_window_stride(window_step: float, max_length: int) -> int:
    """Returns how many items a window slides by: int(window_step x N), or N for -1. Raises UserError for 0."""
    stride = max_length if window_step == -1 else int(window_step * max_length)
    if stride < 1:
        raise UserError(
            "`window_step` x `max_length` must be at least 1. "
            f"Received: window_step={window_step}, max_length={max_length}"
        )
    return stride


ROWWISE = "rowwise_adagrad"
USES_ADAM = {"optimizer": ("adam", ROWWISE)}


@dataclass(frozen=True)
class TrainingSettings(Settings):
    """The optimizer, the schedule and the protocol."""

    steps: int = setting(10_000, "training steps", at_least=1, at_most=2**31 - 1)
    batch_size: int = setting(256, "examples per step", at_least=1, at_most=1_000_000)
    learning_rate: float = setting(1e-4, "the highest learning rate", above=0)
    warmup_steps: int = setting(100, "steps over which the learning rate rises from 0", at_least=0)
    optimizer: str = setting(
        "adam",
        "how gradients become updates; rowwise_adagrad changes only the rows of items and users that a step reads, and "
        "all other weights by Adam",
        choices=("adam", "adagrad", ROWWISE),
    )
    row_learning_rate: float = setting(
        0.05, "the highest learning rate of rowwise_adagrad's rows", only_with={"optimizer": (ROWWISE,)}, above=0
    )
    schedule: str = setting(
        "linear",
        "learning rate after the warm-up: linear falls to 0 at the end of the last step, constant stays",
        choices=("linear", "constant"),
    )
    momentum: float = setting(0.0, "momentum of Adagrad", only_with={"optimizer": ("adagrad",)}, at_least=0, below=1)
    weight_decay: float = setting(
        0.01, "Adam's decoupled decay of all weights but biases and layer norms", only_with=USES_ADAM, at_least=0
    )
    clip_norm: float = setting(5.0, "global norm at which gradients are clipped (0: never)", at_least=0)
    beta_1: float = setting(0.9, "decay of Adam's first moment", only_with=USES_ADAM, at_least=0, below=1)
    beta_2: float = setting(0.999, "decay of Adam's second moment", only_with=USES_ADAM, at_least=0, below=1)
    epsilon: float = setting(1e-6, "added to the root of Adam's second moment", only_with=USES_ADAM, above=0)
    bias_correction: bool = setting(
        False, "correct Adam's moments for their start at 0, which the original does not", only_with=USES_ADAM
    )
    protocol: str = setting(
        SELECT_AND_RETRAIN,
        "select_and_retrain: pick the number of steps on the validation items, then train that long again with these "
        "items included; select: only the first; fixed: train once, with them included, for the given number of steps; "
        "all: as select, and then train the model that is exported on all actions",
        choices=tuple(TRAININGS),
    )
    evaluate_every: int = setting(1_000, "steps between two measurements on the validation item", at_least=1)
    selection_metric: str = setting(
        "popular",
        "what the best step is chosen by, NDCG@10 on the validation items among: popular, 100 items drawn by "
        "popularity, as in the paper; or full, all unseen items, as a recommender ranks (of at most 10,000 users)",
        choices=("popular", "full"),
    )
    patience: int = setting(0, "stop after this many measurements without a better one (0: never)", at_least=0)
    stop_after: int = setting(
        0,
        "stop after this many steps, although the rate falls to 0 only at `steps` (0: at `steps`)",
        at_least=0,
    )
    final_share: float = setting(
        0.0,
        "above 0: the training after the selection starts from the selected weights, and takes this share of their "
        "steps with a lower rate; 0: it starts anew and takes as many steps",
        at_least=0,
        at_most=1,
    )
    scale_final_steps: bool = setting(
        False,
        "with final_share=0: the training after the selection takes more steps, in proportion to the actions that it "
        "learns from",
        is_later=True,
    )
    mixed_precision: bool = setting(
        False, f"compute {' and '.join(ATTENTION_MODELS)} in bfloat16 and keep the weights in float32"
    )
    tensor_float_32: bool = setting(
        False,
        "on a GPU, round products of float32 matrices to TensorFloat-32, which is faster; mixed precision does too",
    )
    replicas: int = setting(1, "devices that share each batch", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol == FIXED_STEPS and self.patience:
            raise UserError(
                "`patience` must be 0 with protocol=fixed: early stopping would look at items it trains on. "
                f"Received: patience={self.patience}"
            )
        if self.warmup_steps >= self.steps:
            raise UserError(
                f"`warmup_steps` must be below `steps`. Received: warmup_steps={self.warmup_steps}, steps={self.steps}"
            )
        if self.stop_after > self.steps:
            raise UserError(
                f"`stop_after` must be at most `steps`. Received: stop_after={self.stop_after}, steps={self.steps}"
            )
        if self.batch_size < self.replicas:
            raise UserError(
                "`batch_size` must be at least `replicas`. "
                f"Received: batch_size={self.batch_size}, replicas={self.replicas}"
            )


@dataclass(frozen=True)
class EvaluationSettings(Settings):
    """The candidates among which a target is ranked (section 4.2)."""

    num_negatives: int = setting(100, "candidates beside the target", at_least=1)
    candidates_seed: int = setting(0, "seed of the candidates, separate from the run's seed", at_least=0)


@dataclass(frozen=True)
class Run:
    """Everything that decides a result, apart from the data themselves (whose fingerprint is stored beside it).

    `architecture` holds the model's settings (`MODEL_SETTINGS`). `initial_weights` is the fingerprint of the weights
    that a warm start begins with; None if the seed draws them.
    """

    dataset: str
    model: str
    seed: int
    architecture: Any
    masking: MaskingSettings
    training: TrainingSettings
    evaluation: EvaluationSettings
    initial_weights: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", convert_value(self.seed))
        if type(self.seed) is not int or not 0 <= self.seed < 2**32:
            raise UserError(f"`seed` must be a whole number from 0 to 2^32 - 1. Received: seed={self.seed}")
        if self.model in MASKED_MODELS:
            compute_window_stride(self.masking.window_step, self.architecture.max_length)
        if self.training.optimizer == ROWWISE:
            self._check_rows()
        if self.uses_evidence:
            self._check_mix()

    def _check_mix(self) -> None:
        """Raises UserError if only a part of the evidence's mix is given, or nothing and nothing can be chosen."""
        settings = self.architecture
        mix = settings.evidence_gain, settings.evidence_popularity
        if None not in mix:
            return
        if mix != (None, None) or settings.evidence_temperature != 1.0:
            condition = "together, and with `evidence_temperature`"
        elif SELECT not in TRAININGS[self.training.protocol]:
            condition = "with protocol=fixed, which has no validation items to choose them"
        else:
            return
        raise UserError(
            f"`evidence_gain` and `evidence_popularity` must be given {condition}. "
            f"Received: evidence_gain={mix[0]}, evidence_popularity={mix[1]}"
        )

    @property
    def given_mix(self) -> tuple[float, float, float] | None:
        """The given `TransitionEvidence.mix`; None if it is chosen in SELECT."""
        settings = self.architecture
        if settings.evidence_gain is None:
            return None
        return settings.evidence_gain, settings.evidence_popularity, 1 / settings.evidence_temperature

    def _check_rows(self) -> None:
        """Raises UserError if a step reads whole tables, which ROWWISE cannot update by rows."""
        loss, context, hint = getattr(self.architecture, "loss", None), f"for {self.model}", ""
        if loss in LOSSES and LOSSES[loss].negatives == ALL_ITEMS:
            context, hint = f"with loss={loss}", f"; {ROWWISE} goes with loss=sampled_softmax"
        elif self.model != "caser":  # the norm of all its weights is in its loss
            return
        raise UserError(
            f"`optimizer` must be adam or adagrad {context}, where a step reads all items{hint}. "
            f"Received: optimizer={ROWWISE}"
        )

    @property
    def uses_evidence(self) -> bool:
        """Whether counts of transitions are added to the network's scores."""
        return isinstance(self.architecture, AttentionSettings) and self.architecture.evidence == TRANSITIONS

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits that depend on every field."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, Any]:
        """Returns the record in JSON's types."""
        record = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if self.initial_weights is None:
            del record["initial_weights"]
        groups = {name: value.record() for name, value in record.items() if isinstance(value, Settings)}
        return {**record, **groups}

    def flatten(self) -> dict[str, Any]:
        """Returns every setting that the model uses by name, without its group."""
        masking = (self.masking,) if self.model in MASKED_MODELS else ()
        groups = (self.architecture, *masking, self.training, self.evaluation)
        return {name: value for group in groups for name, value in dataclasses.asdict(group).items()}

    def change(self, **settings: Any) -> "Run":
        """Returns the run with other settings, each put into its group. Those that the model does not have are ignored.

        Raises UserError for a value out of its range.
        """
        kinds = _list_groups(self.model).items()
        groups = {name: dataclasses.replace(getattr(self, name), **_select(settings, kind)) for name, kind in kinds}
        return dataclasses.replace(self, **groups)

    def refuse_unused(self, names: Collection[str]) -> None:
        """Raises UserError if a setting that the user named has no effect beside the others."""
        if self.training.mixed_precision and self.model not in (*ATTENTION_MODELS, *COUNTING_MODELS):
            raise UserError(
                f"`mixed_precision` needs model={', '.join(ATTENTION_MODELS)}. "
                f"Received: mixed_precision=True, model={self.model}"
            )
        for name in self._masks_never_read():
            if name in names:
                raise UserError(
                    f"`{name}` needs mask_copies above 0: without, each example has only its last item masked. "
                    f"Received: {name}={getattr(self.masking, name)}, mask_copies=0"
                )
        settings = self.flatten()
        given_names = {name for name in names if settings.get(name) is not None}
        if self.model in COUNTING_MODELS:  # they are not trained
            given_names -= {field.name for field in dataclasses.fields(TrainingSettings)}
        if "evidence_gain" in given_names and settings.get("network_share", 1.0) is None:
            raise UserError(
                f"`network_share` must be given to {self.model} with `evidence_gain` and `evidence_popularity`: it is "
                "chosen only together with them. Received: network_share=None"
            )
        fields = _list_fields(self.model)
        for name, is_read, requirement in self._list_conditions():
            if name in given_names and not is_read and settings[name] != fields[name].default:
                raise UserError(f"`{name}` needs {requirement}. Received: {name}={settings[name]}")
        for name, field in fields.items():
            for key, values in field.metadata["only_with"].items() if name in given_names else ():
                if key in settings and settings[key] not in values:
                    choices = " or ".join(map(str, values))
                    raise UserError(f"`{name}` needs {key}={choices}. Received: {key}={settings[key]}")

    def _list_conditions(self) -> list[tuple[str, bool, str]]:
        """Returns settings, whether something reads them, and what they need."""
        protocol, share = self.training.protocol, self.training.final_share
        selects, trains_again = SELECT in TRAININGS[protocol], protocol in (SELECT_AND_RETRAIN, ALL)
        select_need = f"a protocol that selects: select, select_and_retrain or all, not {protocol}"
        retrain_need = f"a protocol that trains again after a selection: select_and_retrain or all, not {protocol}"
        return [
            ("selection_metric", selects, select_need),
            ("final_share", trains_again, retrain_need),
            ("scale_final_steps", trains_again, retrain_need),
            ("scale_final_steps", share == 0, f"final_share=0, not {share}"),
            ("alpha", getattr(self.architecture, "extra_negatives", 1) > 0, "extra_negatives above 0"),
        ]

    def _masks_never_read(self) -> tuple[str, ...]:
        if self.model not in MASKED_MODELS or self.masking.mask_copies:
            return ()
        windows = ("window_step",) if self.masking.prefix_copies else ()
        return ("mask_proportion", "mask_prob", "max_predictions", *windows)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Run":
        """Rebuilds a run from `to_dict`. Raises UserError for a model or a field this version does not know."""
        try:
            parts = {}
            for group, settings in _list_groups(content["model"]).items():
                known_names = [field.name for field in dataclasses.fields(settings)]
                for name in content[group]:
                    if name not in known_names:
                        raise unknown_name_error(f"setting of {group}", name, known_names)
                parts[group] = settings(**content[group])
            return cls(**{**content, **parts})
        except (KeyError, TypeError) as error:
            raise UserError(f"Not the record of a run of this version: {error}") from error

    @classmethod
    def make(cls, dataset: str, model: str = "bert4rec", seed: int = 1, **settings: Any) -> "Run":
        """Makes a run from flat settings, each put into the group that declares it.

        Raises:
            UserError: for an unknown name (it suggests the nearest one), or a value out of its range.
        """
        check_values(model, settings)
        groups: dict[str, Any] = {name: kind(**_select(settings, kind)) for name, kind in _list_groups(model).items()}
        return cls(dataset=dataset, model=model, seed=seed, **groups)


def _select(settings: Mapping[str, Any], group: type[Settings]) -> dict[str, Any]:
    """Returns the settings that a group declares."""
    return {field.name: settings[field.name] for field in dataclasses.fields(group) if field.name in settings}


def _list_groups(model: str) -> dict[str, type[Settings]]:
    if model not in [*MODEL_SETTINGS]:  # by equality: it may be a list
        raise unknown_name_error("model", model, MODEL_SETTINGS)
    return {
        "architecture": MODEL_SETTINGS[model],
        "masking": MaskingSettings,
        "training": TrainingSettings,
        "evaluation": EvaluationSettings,
    }


def check_values(model: str, settings: Mapping[str, Any]) -> None:
    """Raises UserError for a setting that the model does not have, and a value that is out of its range by itself."""
    fields = _list_fields(model)
    for name, value in settings.items():
        if name not in fields and name in list_settings():
            models = [kind for kind in MODEL_SETTINGS if name in _list_fields(kind)]
            raise UserError(f"Unknown setting of model {model!r}: {name!r}. It is one of {', '.join(models)}")
        if name not in fields:
            raise unknown_name_error(f"setting of model {model!r}", name, fields)
        check_value(fields[name], value)


def list_settings() -> dict[str, dataclasses.Field]:
    """Returns every field of every model's settings by name. Each is a flag of the command line."""
    return {name: field for model in MODEL_SETTINGS for name, field in _list_fields(model).items()}


def make_help_texts() -> dict[str, str]:
    """Returns name -> meaning for each of `list_settings`. It names the models that have the setting, unless all do."""
    models: dict[str, dict[str, list[str]]] = {}
    for model in MODEL_SETTINGS:
        for name, field in _list_fields(model).items():
            models.setdefault(name, {}).setdefault(describe_setting(field), []).append(model)
    return {
        name: "; ".join(
            text if len(some) == len(MODEL_SETTINGS) else f"{text} ({', '.join(some)})" for text, some in texts.items()
        )
        for name, texts in models.items()
    }


def _list_fields(model: str) -> dict[str, dataclasses.Field]:
    """Returns every setting that a model uses by name."""
    groups = [group for name, group in _list_groups(model).items() if name != "masking" or model in MASKED_MODELS]
    return {field.name: field for group in groups for field in dataclasses.fields(group)}
