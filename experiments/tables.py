"""The tables and figures of the paper's section 4, as data: the runs that each one needs, and the text above it.

To add an experiment, add one entry to TABLES.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bert4rec_tf.config import presets

DATASETS = ("beauty", "steam", "ml-1m", "ml-20m")
QUICK_DATASETS = ("synthetic",)

MODELS = {
    "pop": "POP",
    "bpr_mf": "BPR-MF",
    "ncf": "NCF",
    "fpmc": "FPMC",
    "gru4rec": "GRU4Rec",
    "gru4rec_plus": "GRU4Rec+",
    "caser": "Caser",
    "sasrec": "SASRec",
    "bert4rec": "BERT4Rec",
}
"""The columns of the paper's Table 2."""

NOT_IN_PAPER = " (not in the paper)"
EXTRA = {
    "item_transitions": f"item_transitions{NOT_IN_PAPER}",
    "sasrec_softmax": f"SASRec, softmax{NOT_IN_PAPER}",
    "sasrec_best": f"SASRec, preset best{NOT_IN_PAPER}",
    "bert4rec_one_mask": f"BERT4Rec, 1 mask{NOT_IN_PAPER}",
    "bert4rec_best": f"BERT4Rec, preset best{NOT_IN_PAPER}",
}
"""Further columns of our Table 2. EXTRA_CELLS says on which data sets."""

SEQUENTIAL = ("gru4rec", "gru4rec_plus", "caser", "sasrec", "bert4rec")
"""The curves of Figure 3."""

WIDTHS = (16, 32, 64, 128, 256)
PROPORTIONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
LENGTHS = {"beauty": (10, 20, 30, 40, 50), "ml-1m": (10, 50, 100, 200, 400), "synthetic": (10, 20)}
"""Data set -> the values of N in Table 4."""


@dataclass(frozen=True)
class Cell:
    """One run of a table.

    Attributes:
        dataset, model: the run's data set and model.
        variant: its key in the table.
        changes: settings in place of the preset's.
        preset: its own preset; None for the plan's.
    """

    dataset: str
    model: str
    variant: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None


ONE_MASK = {"max_predictions": 1}
"""Masks one item per example: at d = 256 in Table 3, and at the preset's width in Table 2."""

SOFTMAX = {"loss": "cross_entropy", "hidden_dim": 64, "warmup_steps": 100, "protocol": "fixed"}
SOFTMAX_OF_DATA: dict[str, dict[str, Any]] = {
    "beauty": {**SOFTMAX, "dropout": 0.1, "steps": 3_500},
    "ml-1m": {**SOFTMAX, "dropout": 0.2, "steps": 3_000},
}
"""SASRec by softmax, d = 64. Steps and dropout were chosen on the validation items (docs/quality.md has the curve)."""

EXTRA_CELLS = {
    (cell.dataset, cell.variant): cell
    for cell in (
        *(Cell(name, "item_transitions", "item_transitions") for name in ("beauty", "ml-1m", *QUICK_DATASETS)),
        *(Cell(name, "sasrec", "sasrec_softmax", settings) for name, settings in SOFTMAX_OF_DATA.items()),
        *(Cell(name, "sasrec", "sasrec_best", preset="best") for name in ("beauty", "ml-1m")),
        *(Cell(name, "bert4rec", "bert4rec_one_mask", ONE_MASK) for name in ("beauty", "ml-1m")),
        *(Cell(name, "bert4rec", "bert4rec_best", preset="best") for name in ("beauty", "ml-1m")),
    )
}


@dataclass(frozen=True)
class Table:
    """A table or figure.

    Attributes:
        title: its title.
        datasets: its data sets in the paper.
        variants: the runs on each data set, key -> title, in the paper's order.
        cell: (data set, key, preset of BERT4Rec) -> the run; None if the table needs no runs.
        metrics: the metrics that it shows.
        quick: the variants of a quick run.
        note: the text above it in the report.
        keeps_attention: whether its runs keep their mean attention too.
    """

    title: str
    datasets: tuple[str, ...]
    variants: Mapping[str, str]
    cell: Callable[[str, str, str], Cell | None] | None
    metrics: tuple[str, ...] = ("hr@10", "ndcg@10")
    quick: tuple[str, ...] = ()
    note: str = ""
    keeps_attention: bool = False

    def cells(self, datasets: Sequence[str], preset: str = "fast", quick: bool = False) -> list[Cell]:
        """Returns its runs on those of `datasets` that it has. `preset`: settings of BERT4Rec to start from."""
        if self.cell is None:
            return []
        keys = self.quick if quick else tuple(self.variants)
        known = (*self.datasets, *QUICK_DATASETS) if quick else self.datasets
        cells = [self.cell(dataset, key, preset) for dataset in datasets if dataset in known for key in keys]
        return [cell for cell in cells if cell is not None]


def _of_width(dataset: str, hidden_dim: int, preset: str) -> dict[str, Any]:
    """Returns the settings of a width: `fast` keeps its dropout, the authors' presets have one for each width."""
    dropout = {} if preset == "fast" else presets.dropout_of(dataset, hidden_dim)
    return {"hidden_dim": hidden_dim, **dropout}


def max_predictions(mask_proportion: float, max_length: int) -> int:
    """Returns round(rho x N), at least 1. A preset's own number would limit a larger rho."""
    return max(1, round(mask_proportion * max_length))


def _masks(dataset: str, preset: str, **changed: float) -> dict[str, Any]:
    """Returns the settings of another rho or N at d = 64, with the number of predictions that fits."""
    masked = {**presets.find_preset(preset, dataset).settings, **changed}
    most = max_predictions(masked["mask_proportion"], masked["max_length"])
    return {**_of_width(dataset, 64, preset), **changed, "max_predictions": most}


def _model(dataset: str, key: str, preset: str) -> Cell | None:
    return Cell(dataset, key, key) if key in MODELS else EXTRA_CELLS.get((dataset, key))


def _bidirection(dataset: str, key: str, preset: str) -> Cell:
    if key == "sasrec":
        return Cell(dataset, "sasrec", key, {"hidden_dim": 256})
    changes = _of_width(dataset, 256, preset)
    return Cell(dataset, "bert4rec", key, {**changes, **ONE_MASK} if key == "one_mask" else changes)


def _width(dataset: str, key: str, preset: str) -> Cell:
    model, width = key.split("@")
    changes = _of_width(dataset, int(width), preset) if model == "bert4rec" else {"hidden_dim": int(width)}
    return Cell(dataset, model, key, changes)


def _proportion(dataset: str, key: str, preset: str) -> Cell:
    return Cell(dataset, "bert4rec", key, _masks(dataset, preset, mask_proportion=float(key)))


def _length(dataset: str, key: str, preset: str) -> Cell | None:
    if int(key) not in LENGTHS[dataset]:
        return None
    return Cell(dataset, "bert4rec", key, _masks(dataset, preset, max_length=int(key)))


ABLATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("L = 2, h = 2", {}),
    "no_positions": ("w/o PE", {"use_positions": False}),
    "no_feed_forward": ("w/o PFFN", {"use_feed_forward": False}),
    "no_layer_norm": ("w/o LN", {"use_layer_norm": False}),
    "no_residual": ("w/o RC", {"use_residual": False}),
    "no_dropout": ("w/o dropout", {"dropout": 0.0, "attention_dropout": 0.0}),
    "layers_1": ("1 layer", {"num_layers": 1}),
    "layers_3": ("3 layers", {"num_layers": 3}),
    "layers_4": ("4 layers", {"num_layers": 4}),
    "heads_1": ("1 head", {"num_heads": 1}),
    "heads_4": ("4 heads", {"num_heads": 4}),
    "heads_8": ("8 heads", {"num_heads": 8}),
    "layers_4_no_residual": ("4 layers w/o RC", {"num_layers": 4, "use_residual": False}),
}
"""Key -> title and changes: the rows of Table 5, and one of section 4.8, which the paper only has for ML-20m."""


def _ablation(dataset: str, key: str, preset: str) -> Cell | None:
    if key == "layers_4_no_residual" and dataset != "ml-20m":
        return None
    return Cell(dataset, "bert4rec", key, {**_of_width(dataset, 64, preset), **ABLATIONS[key][1]})


STEPS_OF_A_WIDTH = (
    "At every width BERT4Rec trains for as many steps as its preset has, on the validation items too. Another model "
    "whose width is not its preset's first chooses its number of steps on the validation items."
)

TABLES: dict[str, Table] = {
    "table1": Table("Sizes of the data sets", DATASETS, {}, None, ()),
    "table2": Table(
        "How well each model predicts the next item",
        DATASETS,
        {**MODELS, **EXTRA},
        _model,
        ("hr@1", "hr@5", "hr@10", "ndcg@5", "ndcg@10", "mrr"),
        (*MODELS, *EXTRA),
        "The best of a row is bold, the second best underlined; ± is the standard deviation over seeds. “Gain” is "
        "BERT4Rec's over the best other of the paper's models; the paper's is as printed there. Not in the paper: a "
        "count of items that occur together, SASRec's softmax over all items, --preset=best, and one mask per example.",
    ),
    "table3": Table(
        "What bidirection and the Cloze task bring, at d = 256",
        ("beauty", "ml-1m"),
        {"sasrec": "SASRec", "one_mask": "BERT4Rec (1 mask)", "bert4rec": "BERT4Rec"},
        _bidirection,
        ("hr@10", "ndcg@10", "mrr"),
        ("sasrec", "one_mask", "bert4rec"),
        STEPS_OF_A_WIDTH,
    ),
    "table4": Table(
        "Which maximum length N is best, and how fast it trains",
        ("beauty", "ml-1m"),
        {str(length): f"N = {length}" for length in sorted({n for some in LENGTHS.values() for n in some})},
        _length,
        quick=("10", "20"),
        note="The best of a row is bold, the second best underlined. “samples/s” is the speed of training with its "
        "measurements: the paper's on a GPU, ours on the machine of the run. The paper's HR@10 and NDCG@10 on ML-1m "
        "are missing, because the text that its numbers come from lost them.",
    ),
    "table5": Table(
        "What each part of BERT4Rec contributes",
        DATASETS,
        {key: title for key, (title, _) in ABLATIONS.items()},
        _ablation,
        ("ndcg@10",),
        ("default", "no_positions"),
        "Bold is better than the default of L = 2 layers with h = 2 heads; ↓ is more than 10 % below it. PE are the "
        "position embeddings, PFFN the feed-forward networks, LN is layer norm, RC are the residual connections.",
    ),
    "figure2": Table(
        "Where the last ten positions attend",
        ("beauty",),
        {"default": "BERT4Rec"},
        _ablation,
        (),
        ("default",),
        "Each row of a map is a position, and shows how it divides its attention among the last ten; the very last is "
        "the mask token. Attention to earlier positions is left out, and each row scaled to a sum of 1. The maps are "
        "means over all users whose test input has at least ten positions, the mask token included.",
        keeps_attention=True,
    ),
    "figure3": Table(
        "How results change with the width d",
        DATASETS,
        {f"{model}@{width}": f"{MODELS[model]}, d = {width}" for model in SEQUENTIAL for width in WIDTHS},
        _width,
        quick=("sasrec@16", "sasrec@32", "bert4rec@16", "bert4rec@32"),
        note=STEPS_OF_A_WIDTH,
    ),
    "figure4": Table(
        "How results change with the mask proportion rho",
        DATASETS,
        {str(rho): f"rho = {rho}" for rho in PROPORTIONS},
        _proportion,
        quick=("0.2", "0.5"),
        note="The best of each column is bold.",
    ),
}
"""Name -> table or figure."""


def label(name: str) -> str:
    """Returns "Table 3" for "table3"."""
    return f"{name[:-1].capitalize()} {name[-1]}"
