"""The flags of `bert4rec run` that are not settings of the run, and what a command line asks for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert4rec_tf.commands.flags import make_interactions
from bert4rec_tf.config import popularity_option, presets
from bert4rec_tf.config.data_names import OWN, Interactions, list_column_options
from bert4rec_tf.config.execution import ExecutionSettings
from bert4rec_tf.config.model_settings import (
    AUTO,
    ITEM_FEATURES,
    MODEL_SETTINGS,
    PAPERS_MODEL,
    USER_FEATURES,
    settings_for_features,
)
from bert4rec_tf.config.run_record import list_settings
from bert4rec_tf.config.setting_fields import setting
from bert4rec_tf.export.layout import FORMATS, SAVED_MODEL
from bert4rec_tf.foundation.errors import UserError, unknown_name_error
from bert4rec_tf.foundation.stores import expand_local_path, expand_path

SAVED_MODEL_FLAGS = ("k", "with_histories", "popularity_correction")
"""Flags for an export as a SavedModel alone."""

MODES = ("all", "prepare", "train", "evaluate", "export")
TRAINS = ("all", "train")
"""The modes that use all machines of TF_CONFIG. The chief does the others alone."""

EXPORTS = ("all", "export")
USED_BY = {"minutes": TRAINS, "format": ("export",), **dict.fromkeys(("export_dir", *SAVED_MODEL_FLAGS), EXPORTS)}
"""Flag -> the modes that use it, for the flags that not all modes use."""

MAX_COUNT = 1_000_000
LOCAL, SPARK = "local", "spark"


@dataclass(frozen=True)
class RunOptions(ExecutionSettings):
    """Every field is a flag of the same name. None of them is part of a run's digest, but what they name may be."""

    dataset: str | None = setting(None, "data set: beauty, steam, ml-1m, ml-20m, synthetic, ...")
    source: str = setting("processed", "processed (the authors' file) or raw (the publisher's)")
    interactions: str | None = setting(
        None, "your own data instead of --dataset: a file, a pattern or a folder of Parquet files (docs/data.md)"
    )
    item_features: str | None = setting(
        None,
        "CSV or Parquet with a column of item ids and columns of features, for bert4rec and sasrec (docs/features.md)",
    )
    user_features: str | None = setting(None, "CSV or Parquet as for --item_features, with a column of user ids")
    new_items: bool = setting(False, "also rank items that occur only in --item_features")
    model: str | None = setting(
        None, f"model: {', '.join(MODEL_SETTINGS)} (default: {AUTO}; with --dataset, {PAPERS_MODEL})"
    )
    preset: str = setting("fast", "preset of settings: " + ", ".join(presets.NAMES))
    seed: int = setting(1, "seed of masks, initial weights, dropout and the order of examples")
    data_dir: str | None = setting(
        None, "folder of downloaded and converted data (default: $BERT4REC_DATA, else ~/.cache/bert4rec_tf)"
    )
    workdir: str | None = setting(None, "folder of the run (default: runs/<dataset>-<model>-<digest of the settings>)")
    prepared_dir: str | None = setting(None, "folder of training examples and candidates (default: in the workdir)")
    threads: int | None = setting(
        None, "threads to compute with (default: all); rounding depends on it", at_least=1, at_most=MAX_COUNT
    )
    minutes: float | None = setting(
        None,
        "a budget of time for everything: plans the steps and, if they are too few, width and --max_length",
    )
    init_from: str | None = setting(
        None, "trained weights to start from: a workdir, a training in one, or the authors' checkpoint"
    )
    k: int = setting(10, "how many items the exported model recommends", at_least=1, at_most=MAX_COUNT)
    with_histories: int | None = setting(
        None,
        "keep every user's last N items in the exported model: a user's id is then enough to ask for recommendations "
        "(0: none; default: all, but with --mode=export those of the export that is replaced)",
        at_least=0,
        at_most=MAX_COUNT,
    )
    export_dir: str | None = setting(None, "folder of the exported model (default: the format's name in the workdir)")
    format: str = setting(SAVED_MODEL, "what --mode=export writes: " + ", ".join(FORMATS))
    verbose: bool = setting(False, "also print every metric and the settings chosen for you")
    mode: str = setting("all", "what to do: all, prepare, train, evaluate or export")
    engine: str = setting(LOCAL, "what --mode=prepare reads --interactions with: local or spark (docs/cluster.md)")
    master: str | None = setting(
        None, "with --engine=spark: spark://HOST:7077, local[2], ... (default: Spark's own setting)"
    )
    popularity_correction: float = setting(
        0.0, "alpha >= 0: the exported model ranks by score - alpha log(count + 1) by default"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, choices in {"mode": MODES, "format": FORMATS, "engine": (LOCAL, SPARK)}.items():
            if getattr(self, name) not in choices:
                raise unknown_name_error(name, getattr(self, name), choices)
        if self.engine == SPARK and self.mode != "prepare":
            raise UserError(f"--engine={SPARK} needs --mode=prepare. Received: mode={self.mode}")
        popularity_option.check_correction(self.popularity_correction)


@dataclass(frozen=True)
class Request:
    """What a command line asks for.

    Attributes:
        options: the flags that are not settings of the run.
        model: the name of the model.
        settings: the settings given as flags, and those with which the model uses the given features.
        interactions: the user's own data; None for a data set.
        given_flags: the flags that are given.
    """

    options: RunOptions
    model: str
    settings: dict[str, Any]
    interactions: Interactions | None
    given_flags: frozenset[str]

    @classmethod
    def from_flags(cls, values: Mapping[str, Any]) -> "Request":
        """Returns the request of the given flags, by name. Raises UserError for what can be refused without data."""
        names = RunOptions.__dataclass_fields__.keys()
        options = RunOptions(**{name: value for name, value in values.items() if name in names})
        columns = {name: value for name, value in values.items() if name in list_column_options()}
        settings = {name: value for name, value in values.items() if name in list_settings()}
        given_flags = frozenset(values)
        features = [name for name in (ITEM_FEATURES, USER_FEATURES) if name in given_flags]
        model = options.model or presets.choose_model(OWN if options.interactions else options.dataset)
        settings = {**settings_for_features(model, features), **settings}
        interactions = make_interactions(options.interactions, columns)
        request = cls(options, model, settings, interactions, given_flags)
        request._check()
        return request

    def _check(self) -> None:
        options = self.options
        if self.interactions is not None:
            self.refuse(("dataset", "source"), "cannot be used with --interactions")
        if options.engine != SPARK:
            self.refuse(["master"], f"needs --engine={SPARK}. Received: engine={options.engine}")
        for name, modes in USED_BY.items():
            if options.mode not in modes:
                self.refuse([name], f"needs --mode={' or '.join(modes)}. Received: mode={options.mode}")
        if options.format != SAVED_MODEL:
            self.refuse(SAVED_MODEL_FLAGS, f"needs --format={SAVED_MODEL}. Received: format={options.format}")
        _ = self.workdir, self.prepared_dir, self.export_dir

    def refuse(self, names: Iterable[str], reason: str) -> None:
        """Raises UserError if one of these flags is given."""
        for name in names:
            if name in self.given_flags:
                raise UserError(f"--{name} {reason}")

    @property
    def names_data(self) -> bool:
        return self.options.dataset is not None or self.interactions is not None

    @property
    def features(self) -> dict[str, Any]:
        """The files of features: `item_features`, `user_features`, both or none."""
        files = {ITEM_FEATURES: self.options.item_features, USER_FEATURES: self.options.user_features}
        return {name: file for name, file in files.items() if file is not None}

    @property
    def workdir(self) -> Path | None:
        return expand_local_path(self.options.workdir, "workdir") if self.options.workdir else None

    @property
    def prepared_dir(self) -> Path | None:
        return expand_local_path(self.options.prepared_dir, "prepared_dir") if self.options.prepared_dir else None

    @property
    def export_dir(self) -> Path | None:
        return expand_path(self.options.export_dir) if self.options.export_dir else None
