"""The settings of every model: one frozen dataclass each, which its constructor takes."""

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any

from bert4rec_tf.config.setting_fields import Settings, change_default, setting
from bert4rec_tf.config.transition_settings import ItemTransitionsSettings
from bert4rec_tf.foundation.errors import UserError


def _check_heads(num_heads: int | None, hidden_dim: int) -> None:
    if num_heads and hidden_dim % num_heads:
        raise UserError(
            f"`num_heads` must divide `hidden_dim`. Received: num_heads={num_heads}, hidden_dim={hidden_dim}"
        )


def _declare_changeable(default: Any, help: str, **options: Any) -> Any:
    return setting(default, help, may_change=True, **options)


def _declare_size(default: int | None, help: str, **options: Any) -> Any:
    return setting(default, help, at_least=1, **options)


def _declare_rate(default: float, help: str, **options: Any) -> Any:
    return setting(default, help, at_least=0, below=1, may_change=True, **options)


def _declare_train_negatives(default: int) -> Any:
    return _declare_size(default, "unseen items per example, drawn again in every epoch", may_change=True)


TRANSITIONS = "transitions"
"""The value of `evidence` with which counts join the network."""

NO, ADD, ALONE = "no", "add", "alone"
"""Values of `use_item_features`."""

ITEM_FEATURES, USER_FEATURES = "item_features", "user_features"

BESIDE_EVIDENCE = {"evidence": (TRANSITIONS,)}
"""`only_with` of the settings of evidence."""

ALL_ITEMS, SAMPLE, PER_TARGET, OTHER_TARGETS = "all items", "sample", "per target", "batch"
"""Which items a loss compares a target with: all; a sample, drawn for each batch, which its targets share; items drawn
for each target; the other targets of the batch. Those of SAMPLE and PER_TARGET are drawn for the loss."""


@dataclass(frozen=True)
class Loss:
    """A training loss.

    Attributes:
        function: name of its function in `nn.losses`.
        negatives: ALL_ITEMS, SAMPLE, PER_TARGET or OTHER_TARGETS. Functions with the same ones have the same
            arguments, and a model offers all losses with the negatives it can make.
        scores_are_logits: whether it makes a model's scores the logits of a softmax over the items.
        settings: names of the model's settings that its function takes too.
    """

    function: str
    negatives: str
    scores_are_logits: bool
    settings: tuple[str, ...] = ()


LOSSES = {
    "binary": Loss("binary_cross_entropy", PER_TARGET, scores_are_logits=False),
    "cross_entropy": Loss("table_cross_entropy", ALL_ITEMS, scores_are_logits=True),
    "sampled_softmax": Loss("sampled_softmax", SAMPLE, scores_are_logits=True),
    "top1": Loss("top1", OTHER_TARGETS, scores_are_logits=False),
    "top1_max": Loss("top1_max", OTHER_TARGETS, scores_are_logits=False),
    "bpr_max": Loss("bpr_max", OTHER_TARGETS, scores_are_logits=False, settings=("regularization",)),
}
"""Name of a loss -> what it is, for the models with a setting `loss`."""

WITH_SAMPLE = {"loss": tuple(name for name, loss in LOSSES.items() if loss.negatives == SAMPLE)}
"""`only_with` of the settings of such losses."""


def _declare_loss(default: str, negatives: Collection[str], help: str = "the training loss", **options: Any) -> Any:
    choices = tuple(name for name, loss in LOSSES.items() if loss.negatives in negatives)
    return setting(default, help, choices=choices, may_change=True, **options)


@dataclass(frozen=True)
class AttentionSettings(Settings):
    """Settings of both BERT4Rec and SASRec: features (docs/features.md), initial item vectors, sampled negatives."""

    use_item_features: str = setting(
        NO,
        "vectors of the items' features: no; add: their mean is added to the item's own vector; alone: it replaces "
        "that (default with --item_features: add)",
        choices=(NO, ADD, ALONE),
    )
    use_user_features: bool = setting(
        False,
        "add the mean vector of the user's features at every position (default with --user_features: true)",
    )
    initial_vectors: str = _declare_changeable(
        "random",
        "item vectors before training: random; or cooccurrence, from how often items co-occur",
        choices=("random", "cooccurrence"),
    )
    evidence: str = _declare_changeable(
        "none",
        "what is added to the network's scores: none; or transitions, how often an item came after those of the "
        "history, as item_transitions counts it (not in the paper)",
        choices=("none", TRANSITIONS),
    )
    evidence_gain: float | None = _declare_changeable(
        None,
        "factor of the evidence beside the network's scores (default: chosen on the validation items)",
        at_least=0,
        only_with=BESIDE_EVIDENCE,
    )
    evidence_popularity: float | None = _declare_changeable(
        None,
        "weight of the logarithm of an item's popularity beside the network's scores (default: chosen on the "
        "validation items)",
        only_with=BESIDE_EVIDENCE,
    )
    evidence_popularity_power: float = _declare_changeable(
        0.25,
        "the counts of the evidence are divided by the popularity of the item that came after, to this power",
        at_least=0,
        only_with=BESIDE_EVIDENCE,
    )
    evidence_temperature: float = _declare_changeable(
        1.0,
        "divides the scores of network and evidence, so that their softmax gives probabilities, if evidence_gain is "
        "given (else chosen on the validation items)",
        above=0,
        only_with=BESIDE_EVIDENCE,
    )
    shared_negatives: int = _declare_size(
        4096, "items that a batch draws for sampled_softmax", may_change=True, only_with=WITH_SAMPLE
    )
    negative_sampling: str = _declare_changeable(
        "uniform",
        "how shared_negatives are drawn: uniform; or log_uniform, an item of rank r in proportion to log((r + 1) / r)",
        choices=("uniform", "log_uniform"),
        only_with=WITH_SAMPLE,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.use_item_features == ALONE and self.initial_vectors != "random":
            raise UserError(
                "`initial_vectors` must be random with use_item_features=alone, which leaves items no vectors of their "
                "own. Received: initial_vectors=cooccurrence"
            )


@dataclass(frozen=True)
class BERT4RecSettings(AttentionSettings):
    """The settings of `models.bert4rec.BERT4Rec` (section 3)."""

    max_length: int = setting(50, "N: the longest input, the mask token included", at_least=2, may_change=True)
    hidden_dim: int = _declare_size(64, "d: width of the hidden states")
    num_layers: int = _declare_size(2, "L: number of Transformer blocks")
    num_heads: int | None = _declare_size(None, "h: attention heads (default: d / 32, one below d = 32)")
    intermediate_dim: int | None = _declare_size(
        None, "inner width of the feed-forward network (default: 4 d)", only_with={"use_feed_forward": (True,)}
    )
    dropout: float = _declare_rate(0.1, "dropout of the embeddings and of each sub-layer")
    attention_dropout: float = _declare_rate(0.1, "dropout of the attention probabilities")
    initializer_stddev: float = setting(
        0.02, "standard deviation of the truncated normal initial weights", above=0, may_change=True
    )
    loss: str = _declare_loss(
        "cross_entropy",
        (ALL_ITEMS, SAMPLE),
        "the training loss; cross_entropy is over all items, as in the paper",
    )
    initial_layers: str = _declare_changeable(
        "random",
        "weights of the layers before training: random; or identity, which lets the item vectors pass from the history "
        "to the masked position (not in the paper)",
        choices=("random", "identity"),
    )
    use_positions: bool = setting(True, "add position embeddings (Table 5: PE)")
    positions_from_last: bool = setting(
        False,
        "count positions back from the last item, so that the mask after a history of any length has the same vector "
        "(not in the paper, which counts from the first)",
        only_with={"use_positions": (True,)},
        is_later=True,
    )
    use_feed_forward: bool = setting(True, "use feed-forward sub-layers (Table 5: PFFN)")
    use_layer_norm: bool = setting(True, "use layer norms (Table 5: LN)")
    use_residual: bool = setting(True, "use residual connections (Table 5: RC)")
    use_token_type: bool = setting(False, "add the original program's constant token type embedding")

    def __post_init__(self) -> None:
        super().__post_init__()
        defaults = {"num_heads": max(1, self.hidden_dim // 32), "intermediate_dim": 4 * self.hidden_dim}
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        _check_heads(self.num_heads, self.hidden_dim)


@dataclass(frozen=True)
class PopSettings(Settings):
    """POP has no settings."""


@dataclass(frozen=True)
class BprMfSettings(Settings):
    hidden_dim: int = _declare_size(64, "d: width of the user and item embeddings")
    l2: float = setting(1e-3, "weight of the squared norms of an example's embeddings", at_least=0, may_change=True)
    initializer_stddev: float = setting(0.01, "standard deviation of the initial weights", above=0, may_change=True)
    negatives: str = _declare_changeable(
        "uniform",
        "uniform: draw negatives uniformly from a user's unseen items; popular: in proportion to their counts",
        choices=("uniform", "popular"),
    )


@dataclass(frozen=True)
class FpmcSettings(BprMfSettings):
    """The settings of `models.fpmc.Fpmc`: of a type of its own, because a model is found by it (`models.MODELS`)."""


@dataclass(frozen=True)
class NcfSettings(Settings):
    hidden_dim: int = setting(64, "width of the tower's input, a multiple of 8", at_least=8)
    l2: float = setting(0.0, "weight of the squared norms of an example's embeddings", at_least=0, may_change=True)
    initializer_stddev: float = setting(0.01, "standard deviation of the initial weights", above=0, may_change=True)
    train_negatives: int = _declare_train_negatives(4)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden_dim % 8:
            raise UserError(f"`hidden_dim` must be a multiple of 8. Received: hidden_dim={self.hidden_dim}")


@dataclass(frozen=True)
class GRU4RecSettings(Settings):
    max_length: int = _declare_size(50, "how many of a history's last items are read", may_change=True)
    hidden_dim: int = _declare_size(100, "width of the GRU and of the item embeddings")
    dropout: float = _declare_rate(0.0, "dropout of the GRU's input and output")
    loss: str = _declare_loss("top1", (OTHER_TARGETS,))
    final_activation: str = setting(
        "tanh", "applied to the scores in the loss", choices=("linear", "tanh", "elu-0.5"), may_change=True
    )
    regularization: float = setting(
        0.0,
        "weight of the negatives' squared scores in bpr_max",
        at_least=0,
        may_change=True,
        only_with={"loss": tuple(name for name, loss in LOSSES.items() if "regularization" in loss.settings)},
    )
    extra_negatives: int = setting(0, "negatives per row that the whole batch shares", at_least=0, may_change=True)
    alpha: float = setting(0.75, "shared negatives are drawn in proportion to count^alpha", at_least=0, may_change=True)


@dataclass(frozen=True)
class GRU4RecPlusSettings(GRU4RecSettings):
    loss: str = change_default(GRU4RecSettings, "loss", "bpr_max")
    final_activation: str = change_default(GRU4RecSettings, "final_activation", "elu-0.5")
    regularization: float = change_default(GRU4RecSettings, "regularization", 1.0)
    extra_negatives: int = change_default(GRU4RecSettings, "extra_negatives", 16)


@dataclass(frozen=True)
class CaserSettings(Settings):
    markov_order: int = _declare_size(5, "L: how many of the last items are read")
    num_targets: int = _declare_size(3, "T: the next items that an example predicts", may_change=True)
    hidden_dim: int = _declare_size(50, "d: width of the user and item embeddings")
    horizontal_filters: int = _declare_size(16, "horizontal filters of each height")
    vertical_filters: int = _declare_size(4, "vertical filters")
    dropout: float = _declare_rate(0.5, "dropout of the convolutions' output")
    train_negatives: int = _declare_train_negatives(3)
    l2: float = setting(1e-6, "weight of half the squared norm of all weights", at_least=0, may_change=True)


@dataclass(frozen=True)
class SASRecSettings(AttentionSettings):
    max_length: int = _declare_size(50, "how many of a history's last items are read", may_change=True)
    hidden_dim: int = _declare_size(50, "d: width of the hidden states")
    num_layers: int = _declare_size(2, "number of blocks")
    num_heads: int = _declare_size(1, "attention heads")
    dropout: float = _declare_rate(0.5, "dropout of embeddings, attention and networks")
    loss: str = _declare_loss("binary", (PER_TARGET, ALL_ITEMS, SAMPLE))

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_heads(self.num_heads, self.hidden_dim)


@dataclass(frozen=True)
class AutoSettings(BERT4RecSettings):
    """The settings of `models.ensemble.Ensemble`. Its networks share them: SASRec reads those that it has."""

    evidence: str = _declare_changeable(
        TRANSITIONS, "transitions: counts are always added to the networks' scores", choices=(TRANSITIONS,)
    )
    network_share: float | None = _declare_changeable(
        None,
        "weight of BERT4Rec's scores; SASRec's have the rest to 1 (default: chosen on the validation items; a given "
        "gain needs it)",
        at_least=0,
        at_most=1,
    )

    masked_batch_size: int | None = _declare_size(
        None, "BERT4Rec's examples in a step; SASRec has batch_size (default: batch_size)", may_change=True
    )

    def select(self, kind: type[AttentionSettings]) -> AttentionSettings:
        """Returns the settings of one of the networks. The evidence joins their sum, not each of them."""
        values = {field.name: getattr(self, field.name) for field in fields(kind)}
        return kind(**{**values, "evidence": "none", "evidence_gain": None, "evidence_popularity": None})


AUTO = "auto"
"""The model that adds the scores of BERT4Rec and SASRec, as far as that helps."""

MODEL_SETTINGS: dict[str, type[Settings]] = {
    "pop": PopSettings,
    "bpr_mf": BprMfSettings,
    "ncf": NcfSettings,
    "fpmc": FpmcSettings,
    "gru4rec": GRU4RecSettings,
    "gru4rec_plus": GRU4RecPlusSettings,
    "caser": CaserSettings,
    "sasrec": SASRecSettings,
    "bert4rec": BERT4RecSettings,
    "item_transitions": ItemTransitionsSettings,
    AUTO: AutoSettings,
}
"""Name of a model -> its settings: the models of Table 2 in its order, then others."""

PAPERS_MODEL = "bert4rec"

MASKED_MODELS = (PAPERS_MODEL, AUTO)
"""The models that are trained on masked histories, the only ones that use `MaskingSettings`."""

COUNTING_MODELS = ("pop", "item_transitions")
"""The models that only count, and are not trained."""

ATTENTION_MODELS = ("bert4rec", "sasrec", AUTO)
"""The models with `AttentionSettings`. Only they can compute in bfloat16: the others would gain little."""


def list_used_features(settings: Settings) -> tuple[str, ...]:
    """Returns which features a model with these settings reads: ITEM_FEATURES, USER_FEATURES, both or none."""
    if not isinstance(settings, AttentionSettings):
        return ()
    uses = {ITEM_FEATURES: settings.use_item_features != NO, USER_FEATURES: settings.use_user_features}
    return tuple(name for name, is_used in uses.items() if is_used)


def settings_for_features(model: str, kinds: Collection[str]) -> dict[str, Any]:
    """Returns the settings with which a model uses these features, as it does by default.

    `kinds`: ITEM_FEATURES, USER_FEATURES, both or none. Raises UserError for features that the model cannot use.
    """
    for name in kinds:
        if model not in ATTENTION_MODELS:
            raise UserError(f"`{name}` needs model={', '.join(ATTENTION_MODELS)}. Received: model={model}")
    return {f"use_{name}": {ITEM_FEATURES: ADD, USER_FEATURES: True}[name] for name in kinds}


def samples_items(settings: Settings) -> bool:
    """Returns whether the loss of a model with these settings compares the targets with a sample of the items."""
    loss = LOSSES.get(getattr(settings, "loss", ""))
    return loss is not None and loss.negatives == SAMPLE
