"""The tables and figures of the paper's section 4, as data: the runs that each one needs, and the text above it.

To add an experiment, add one entry to TABLES.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bert4rec_tf.config import presets
from bert4rec_tf.config.model_settings import PAPERS_MODEL
from bert4rec_tf.config.presets.authors import get_released_dropout

PAPER_DATASETS = ("beauty", "steam", "ml-1m", "ml-20m")
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

SEQUENTIAL = ("gru4rec", "gru4rec_plus", "caser", "sasrec", "bert4rec")
"""The curves of Figure 3."""

WIDTHS = (16, 32, 64, 128, 256)
PROPORTIONS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
LENGTHS = {"beauty": (10, 20, 30, 40, 50), "ml-1m": (10, 50, 100, 200, 400), "synthetic": (10, 20)}
"""Data set -> the values of N in Table 4."""


@dataclass(frozen=True)
class Variant:
    """A row or column of a table: a run on each data set.

    Attributes:
        title: its title.
        model: the run's model.
        changes: settings in place of the preset's. The authors' presets have BERT4Rec's dropout for each width.
        changes_by_data: data set -> further settings.
        preset: its own preset; None for the plan's.
        datasets: data sets that have it; None for all of the table's.
    """

    title: str
    model: str = PAPERS_MODEL
    changes: Mapping[str, Any] = field(default_factory=dict)
    changes_by_data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    preset: str | None = None
    datasets: tuple[str, ...] | None = None

    def make_changes(self, dataset: str, preset: str) -> dict[str, Any]:
        """Returns all settings in place of those of `preset`. With another rho or N, the predictions fit both."""
        changes = {**self.changes, **self.changes_by_data.get(dataset, {})}
        if "hidden_dim" in changes and self.model == PAPERS_MODEL and preset != "fast":
            changes = {**get_released_dropout(dataset, changes["hidden_dim"]), **changes}
        if {"mask_proportion", "max_length"} & self.changes.keys():
            settings = {**presets.find_preset(preset, dataset).settings, **changes}
            changes["max_predictions"] = compute_max_predictions(settings["mask_proportion"], settings["max_length"])
        return changes


def compute_max_predictions(mask_proportion: float, max_length: int) -> int:
    """Returns round(rho x N), at least 1. A preset's own number would limit a larger rho."""
    return max(1, round(mask_proportion * max_length))


@dataclass(frozen=True)
class Table:
    """A table or figure.

    Attributes:
        title: its title.
        datasets: its data sets in the paper.
        variants: key -> variant, in the paper's order; empty if the table needs no runs.
        metrics: the metrics that it shows.
        quick: the keys of a quick run; None for all.
        note: the text above it in the report.
        keeps_attention: whether its runs keep their mean attention too.
    """

    title: str
    datasets: tuple[str, ...]
    variants: Mapping[str, Variant]
    metrics: tuple[str, ...] = ("hr@10", "ndcg@10")
    quick: tuple[str, ...] | None = None
    note: str = ""
    keeps_attention: bool = False

    def list_cells(self, datasets: Sequence[str], quick: bool = False) -> list[tuple[str, str]]:
        """Returns the data set and the variant of each run, on those of `datasets` that the table has."""
        keys = self.quick if quick and self.quick is not None else self.variants
        choices = (*self.datasets, *QUICK_DATASETS) if quick else self.datasets
        return [
            (dataset, key)
            for dataset in datasets
            if dataset in choices
            for key in keys
            if dataset in (self.variants[key].datasets or choices)
        ]


BOTH = ("beauty", "ml-1m")
NARROW, WIDE = {"hidden_dim": 64}, {"hidden_dim": 256}
ONE_MASK = {"max_predictions": 1}
"""Masks one item per example: at d = 256 in Table 3, and at the preset's width in Table 2."""

SOFTMAX = {"loss": "cross_entropy", "hidden_dim": 64, "warmup_steps": 100, "protocol": "fixed"}
SOFTMAX_BY_DATA = {"beauty": {"dropout": 0.1, "steps": 3_500}, "ml-1m": {"dropout": 0.2, "steps": 3_000}}
"""SASRec by softmax, d = 64. Steps and dropout were chosen on the validation items, whose curve is in
experiments/journal/networks.md."""

NO_EVIDENCE = {"evidence": "none", "evidence_gain": None, "evidence_popularity": None}

NOT_IN_PAPER = " (not in the paper)"
TABLE2 = {
    **{model: Variant(title, model) for model, title in MODELS.items()},
    "item_transitions": Variant(
        f"item_transitions{NOT_IN_PAPER}", "item_transitions", datasets=(*BOTH, *QUICK_DATASETS)
    ),
    "sasrec_softmax": Variant(f"SASRec, softmax{NOT_IN_PAPER}", "sasrec", SOFTMAX, SOFTMAX_BY_DATA, datasets=BOTH),
    "sasrec_best": Variant(f"SASRec, preset best{NOT_IN_PAPER}", "sasrec", preset="best", datasets=BOTH),
    "bert4rec_one_mask": Variant(f"BERT4Rec, 1 mask{NOT_IN_PAPER}", changes=ONE_MASK, datasets=BOTH),
    "bert4rec_best": Variant(
        f"BERT4Rec, preset best without evidence{NOT_IN_PAPER}",
        changes=NO_EVIDENCE,
        changes_by_data={"ml-1m": {"steps": 32_000, "initial_layers": "random"}},
        preset="best",
        datasets=BOTH,
    ),
    "bert4rec_evidence": Variant(f"BERT4Rec, preset best{NOT_IN_PAPER}", preset="best", datasets=BOTH),
}

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
}
"""Key -> title and changes: the rows of Table 5."""

STEPS_OF_A_WIDTH = (
    "At every width BERT4Rec trains for as many steps as its preset has, on the validation items too. Another model "
    "whose width is not its preset's first chooses its number of steps on the validation items."
)

TABLES: dict[str, Table] = {
    "table1": Table("Sizes of the data sets", PAPER_DATASETS, {}, ()),
    "table2": Table(
        "How well each model predicts the next item",
        PAPER_DATASETS,
        TABLE2,
        ("hr@1", "hr@5", "hr@10", "ndcg@5", "ndcg@10", "mrr"),
        note="The best of a row is bold, the second best underlined; ± is the standard deviation over seeds. “Gain” is "
        "BERT4Rec's over the best other of the paper's models; the paper's is as printed there. Not in the paper: a "
        "count of items that occur together, SASRec's softmax over all items, --preset=best, and one mask per example.",
    ),
    "table3": Table(
        "What bidirection and the Cloze task bring, at d = 256",
        BOTH,
        {
            "sasrec": Variant("SASRec", "sasrec", WIDE),
            "one_mask": Variant("BERT4Rec (1 mask)", changes=WIDE | ONE_MASK),
            "bert4rec": Variant("BERT4Rec", changes=WIDE),
        },
        ("hr@10", "ndcg@10", "mrr"),
        note=STEPS_OF_A_WIDTH,
    ),
    "table4": Table(
        "Which maximum length N is best, and how fast it trains",
        BOTH,
        {
            str(length): Variant(
                f"N = {length}",
                changes=NARROW | {"max_length": length},
                datasets=tuple(dataset for dataset, lengths in LENGTHS.items() if length in lengths),
            )
            for length in sorted(set().union(*LENGTHS.values()))
        },
        quick=("10", "20"),
        note="The best of a row is bold, the second best underlined. “samples/s” is the speed of training with its "
        "measurements: the paper's on a GPU, ours on the machine of the run. The paper's HR@10 and NDCG@10 on ML-1m "
        "are missing, because the text that its numbers come from lost them.",
    ),
    "table5": Table(
        "What each part of BERT4Rec contributes",
        PAPER_DATASETS,
        {
            **{key: Variant(title, changes=NARROW | changes) for key, (title, changes) in ABLATIONS.items()},
            "layers_4_no_residual": Variant(  # of section 4.8
                "4 layers w/o RC", changes=NARROW | {"num_layers": 4, "use_residual": False}, datasets=("ml-20m",)
            ),
        },
        ("ndcg@10",),
        ("default", "no_positions"),
        "Bold is better than the default of L = 2 layers with h = 2 heads; ↓ is more than 10 % below it. PE are the "
        "position embeddings, PFFN the feed-forward networks, LN is layer norm, RC are the residual connections.",
    ),
    "figure2": Table(
        "Where the last ten positions attend",
        ("beauty",),
        {"default": Variant("BERT4Rec", changes=NARROW)},
        (),
        note="Each row of a map is a position, and shows how it divides its attention among the last ten; the very "
        "last is the mask token. Attention to earlier positions is left out, and each row scaled to a sum of 1. The "
        "maps are means over all users whose test input has at least ten positions, the mask token included.",
        keeps_attention=True,
    ),
    "figure3": Table(
        "How results change with the width d",
        PAPER_DATASETS,
        {
            f"{model}@{width}": Variant(f"{MODELS[model]}, d = {width}", model, {"hidden_dim": width})
            for model in SEQUENTIAL
            for width in WIDTHS
        },
        quick=("sasrec@16", "sasrec@32", "bert4rec@16", "bert4rec@32"),
        note=STEPS_OF_A_WIDTH,
    ),
    "figure4": Table(
        "How results change with the mask proportion rho",
        PAPER_DATASETS,
        {str(rho): Variant(f"rho = {rho}", changes=NARROW | {"mask_proportion": rho}) for rho in PROPORTIONS},
        quick=("0.2", "0.5"),
        note="The best of each column is bold.",
    ),
}
"""Name, such as `table3` or `figure2` -> table or figure."""


def list_datasets() -> tuple[str, ...]:
    """Returns the data sets of all tables, those of the paper first."""
    return tuple(dict.fromkeys(dataset for table in TABLES.values() for dataset in table.datasets))


DATASETS = list_datasets()


def make_label(name: str) -> str:
    """Returns "Table 3" for "table3"."""
    return re.sub(r"(?=\d+$)", " ", name, count=1).capitalize()


def make_cell_label(name: str, variant: str) -> str:
    """Returns "T3: SASRec" for the cells of "sasrec" in "table3"."""
    return f"{name[0].upper()}{make_label(name).split()[1]}: {TABLES[name].variants[variant].title}"
