"""From data to a trained model in one call."""

import numbers
import tempfile
import time as clock
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bert4rec_tf.config import presets
from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.config.model_settings import ATTENTION_MODELS, ITEM_FEATURES, USER_FEATURES, settings_for_features
from bert4rec_tf.config.run_record import ALL, SELECT, SELECT_AND_RETRAIN, Run
from bert4rec_tf.config.time_budget import Budget
from bert4rec_tf.data.reading.feature_files import check_matches, with_features
from bert4rec_tf.data.reading.times import DAYS_IN_ORDER, find_day_form, find_day_length
from bert4rec_tf.data.sequences import LeaveOneOut
from bert4rec_tf.data.sources import inputs
from bert4rec_tf.evaluation.metrics import (
    MIN_USERS,
    NDCG,
    compute_difference,
    compute_per_user,
    find_served_protocol,
)
from bert4rec_tf.foundation import npz, plots, stores
from bert4rec_tf.foundation.errors import UserError, speak_python, unknown_name_error
from bert4rec_tf.foundation.warning import DataWarning, warn
from bert4rec_tf.models import MODELS, Recommender, resolve_name
from bert4rec_tf.notebook.argument_names import check_names, list_arguments
from bert4rec_tf.notebook.fitted import FittedModel, check_callbacks, train_and_open
from bert4rec_tf.notebook.tuning import tune_settings
from bert4rec_tf.notebook.user_tables import label_cases
from bert4rec_tf.runs.folder import WorkDirectory
from bert4rec_tf.serving.client import is_whole_number
from bert4rec_tf.serving.titles import read_titles

PRESET = "preset"
COMPARED = [NDCG, "hr@10", "difference", "low", "high"]
"""Columns of the tables of `compare` and `cross_validate`."""

HELD_OUT = {None: ALL, 0: ALL, 1: SELECT_AND_RETRAIN, 2: SELECT}
"""How many of each user's last actions the final model is not trained on, None or 0 for none -> protocol."""


@speak_python()
def fit(
    data: Any,
    *,
    user: str | None = None,
    item: str | None = None,
    time: str | None = None,
    model: str | type[Recommender] | None = None,
    preset: str = "fast",
    seed: int = 1,
    holdout: int | str | None = PRESET,
    test_from: str | float | None = None,
    titles: Any = None,
    item_features: Any = None,
    user_features: Any = None,
    new_items: bool = False,
    init_from: Any = None,
    workdir: Path | str | None = None,
    callbacks: Sequence[Callable[[dict[str, float]], None]] = (),
    silent: bool = False,
    minutes: float | None = None,
    tune: int = 0,
    **settings: Any,
) -> FittedModel:
    """Trains a model and measures it.

    Examples:
        >>> model = b4r.fit(frame)
        >>> model.recommend(user=15)

    Args:
        data: one action per row: a pandas or polars DataFrame, an Arrow table or another table (`tables.load_frame`), a
            path or a pattern. Or the name of a data set, or `Sequences`. To filter actions first, use
            `b4r.interactions`.
        user, item, time: the columns; None to guess them by their names. `time="none"`: the rows are in order. The
            names hold for the other tables too, if these have such columns.
        model: a name in `b4r.MODELS`, or a class of your own (`b4r.register`). None for "auto" on your own data, and
            for "bert4rec" on a data set.
        preset: name of the settings to start from. For your own data, they depend on the size of the data.
        seed: seed of everything random.
        holdout: how many of each user's last actions the final model is not trained on: 1, 2, or None for none, which
            takes one more training after the measured one. The default is None for your own data, and what the preset
            says for a data set.
        test_from: None to hold out each user's last actions; or a date, or a number like the times of the data, to hold
            out what happened from that time on. A date without a zone is in that of the times. A user's first action
            from then on is the test item, and the one before it the validation item.
        titles: the items' titles: a dictionary, a series, or a table or file with columns of ids and titles
            (`serving.titles`).
        item_features, user_features: a file or a table with a column of ids and columns of features, for BERT4Rec and
            SASRec (docs/features.md). The default is what `with_features` gave the data.
        new_items: whether items that occur only in `item_features` are ranked and recommended too.
        init_from: trained weights to start from, as for `bert4rec run --init_from`.
        workdir: a folder to keep, from which training resumes; by default a temporary one, deleted with the model.
        callbacks: each is called with every new row of the training curve. An exception ends the training.
        silent: whether to hide the progress.
        minutes: a budget of time for everything. The steps and, if they are too few, width and `max_length` are planned
            from a few measured steps. None for what the preset says.
        tune: number of trainings in which to search for better settings on the validation items first
            (`notebook.tuning`); needs Optuna. `trials` of the model lists them. With a `workdir`, the search is kept
            beside it and resumes; a larger number goes on from there.
        **settings: any setting by its name (`steps=2_000`, `hidden_dim=128`), in place of the preset's.

    Raises:
        UserError: for data that cannot be read or trained on, or a setting that is unknown, out of range or unused
            (models that only count take the settings of training, and ignore them).
    """
    dataset = data if inputs.is_data_set(data) else inputs.FRAME
    model = presets.choose_model(dataset) if model is None else resolve_name(model)
    sources = {ITEM_FEATURES: item_features, USER_FEATURES: user_features}
    features: dict[str, Any] = {kind: source for kind, source in sources.items() if source is not None}
    check_names(settings, list_arguments(fit))
    settings, budget = _read_settings(dataset, model, preset, seed, holdout, features, minutes, settings)
    if tune and budget is not None:
        raise UserError("`minutes` must be left out with `tune`, whose trainings have no budget. Received: both")
    if not is_whole_number(tune) or tune < 0 or (tune and init_from is not None):
        raise UserError(
            "`tune` must be a whole number, and left out with `init_from`, whose weights fix the settings. "
            f"Received: tune={tune!r}, init_from={init_from!r}"
        )
    check_callbacks(callbacks)
    name, sequences, interactions = inputs.load_any(data, user, item, time, test_from)
    if model in ATTENTION_MODELS:
        features = {**sequences.features, **features}
    sequences = with_features(sequences, **features, new_items=new_items, silent=silent)
    settings = {**settings_for_features(model, features), **settings}
    title_by_id = {} if titles is None else read_titles(titles, sequences.columns.get("item", {}).get("name"))
    if title_by_id:
        check_matches("titles", title_by_id, sequences.vocabulary.items)

    def make_run(**changes: Any) -> Run:
        return presets.make_run(name, model, preset, seed, size=sequences, **{**settings, **changes})

    best_settings, trials = dict[str, Any](), None
    if tune:
        with tempfile.TemporaryDirectory(prefix="bert4rec-") as scratch:
            path = stores.expand_local_path(workdir or Path(scratch) / name, "workdir")
            path = path.resolve() if path.name in ("", "..") else path
            folder, target = path.with_name(f"{path.name}-tuning"), WorkDirectory(path)
            target.refuse_foreign()  # which a training after the search would do
            best_settings, trials = tune_settings(make_run, settings, sequences, tune, folder, silent)
            if target.config.exists() and target.read_config().run.digest != make_run(**best_settings).digest:
                raise UserError(  # as after a shorter search
                    f"{path}: holds a model with other settings than the best trial; delete this folder to train "
                    f"those. {folder} keeps the trials"
                )
    run = make_run(**best_settings)
    fitted_model = train_and_open(
        run, sequences, interactions, title_by_id, init_from, workdir, callbacks, silent, budget, item_features
    )
    fitted_model.trials = trials
    return fitted_model


def _read_settings(
    dataset: str | Interactions,
    model: str,
    preset: str,
    seed: int,
    holdout: int | str | None,
    features: Mapping[str, Any],
    minutes: float | None,
    settings: Mapping[str, Any],
) -> tuple[dict[str, Any], Budget | None]:
    """Returns the given settings with those that `holdout` and features choose, and the budget of `minutes`.

    Raises UserError for a mistake, as far as it can be known before the data are read.
    """
    budget = None if minutes is None else Budget(minutes, named_settings=settings)
    all_settings = {**settings_for_features(model, features), **settings}
    if not (isinstance(holdout, str) and holdout == PRESET):
        if not isinstance(holdout, int | None) or holdout not in HELD_OUT:
            raise UserError(f"`holdout` must be None, 0, 1 or 2. Received: holdout={holdout!r}")
        if "protocol" in settings:
            raise UserError("`holdout` must be left out with `protocol`, which it chooses. Received: both")
        all_settings["protocol"] = HELD_OUT[holdout]
    presets.check_settings(dataset, model, preset, seed, **all_settings)
    if budget is not None:
        budget.check(model, **all_settings)
    return all_settings, budget


@speak_python()
def compare(
    data: Any,
    models: Sequence[str | type[Recommender]] = ("auto", "bert4rec", "sasrec", "item_transitions"),
    *,
    user: str | None = None,
    item: str | None = None,
    time: str | None = None,
    test_from: str | float | None = None,
    by: str | None = None,
    attributes: Any = None,
    **options: Any,
) -> pd.DataFrame:
    """Trains several models, and measures them on the same test items.

    Examples:
        >>> b4r.compare(frame, models=["bert4rec", "sasrec", "item_transitions"])

    Args:
        data, user, item, time, test_from: as for `fit`.
        models: names in `b4r.MODELS`, or classes of your own.
        by: an attribute of items or users. There is then a row for each of its values and model, over the test cases
            whose item or user has it; `cases` is their number, and takes the place of `seconds`.
        attributes: for `by`: a file or a table with a column of ids of items or users, named so if ids of both fit it.
        **options: as for `fit`, for all these models. `holdout` is 2 by default, which takes one training per model.
            Each model that is trained has the `minutes`, or the trials of `tune`, for itself.

    Returns:
        A row for each model, and the columns `ndcg@10` and `hr@10` among all items that recommendations include (the
        unseen ones, or all if users come back to items); `seconds`, with measuring; and `difference`, by how much
        `ndcg@10` exceeds the first model's, with its 95 % interval from `low` to `high`.

    Raises:
        UserError: for an unknown or repeated model, fewer than MIN_USERS users to measure, and as `fit`.
    """
    options = _choose_holdout(options)
    names = _check_models(models, data if inputs.is_data_set(data) else inputs.FRAME, options, list_arguments(compare))
    sequences = inputs.load_any(data, user, item, time, test_from)[1]
    if (num_users := len(LeaveOneOut(sequences).users)) < MIN_USERS:
        raise UserError(f"`data` must have {MIN_USERS} users with three actions to compare models. Found: {num_users}")
    if (by is None) != (attributes is None):
        raise UserError("`by` and `attributes` must be given together: `by` names a column of the table `attributes`")
    labels = None if by is None else label_cases(sequences, by, attributes)
    source = data if inputs.is_data_set(data) else sequences
    ranks, seconds = dict[str, np.ndarray](), list[float]()
    for name in names:
        begin = clock.monotonic()
        ranks[name] = _measure(source, name, options)
        seconds.append(clock.monotonic() - begin)
    if labels is not None:
        groups = {label: np.flatnonzero(labels == label) for label in sorted({*labels} - {None})}
        rows = [[len(cases), *_compare(ranks, name, cases)] for cases in groups.values() for name in names]
        index = pd.MultiIndex.from_product([groups, names], names=[by, "model"])
        return pd.DataFrame(rows, index, ["cases", *COMPARED])
    table = _tabulate(ranks)
    table.insert(2, "seconds", seconds)
    return table


def _choose_holdout(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of trainings that are only measured: one training each, unless they say otherwise."""
    return options if "protocol" in options else {"holdout": 2, **options}


def _check_models(
    models: Sequence[str | type[Recommender]],
    dataset: str | Interactions,
    options: Mapping[str, Any],
    arguments: Collection[str],
) -> list[str]:
    """Returns the models' names. Raises UserError for a wrong one, or options that not all of them take.

    `arguments`: those that the caller takes beside the options.
    """
    names = [resolve_name(model) for model in models] if pd.api.types.is_list_like(models, allow_sets=False) else []
    if not names or len(set(names)) < len(names):
        raise UserError(f"`models` must be a list of different names. Received: models={models!r}")
    if "model" in options:
        raise UserError(f"`model` must be left out: `models` has the names. Received: model={options['model']!r}")
    if options.get("workdir") is not None:
        raise UserError("`workdir` must be left out: each model would need its own. Fit the best one with a `workdir`")
    fit_options = list_arguments(fit) - {"model"}
    settings = {name: value for name, value in options.items() if name not in fit_options}
    check_names(settings, fit_options | set(arguments))
    features = {kind: options[kind] for kind in (ITEM_FEATURES, USER_FEATURES) if options.get(kind) is not None}
    preset, seed = options.get("preset", "fast"), options.get("seed", 1)
    holdout, minutes = options.get("holdout", PRESET), options.get("minutes")
    for name in names:
        if name not in MODELS:
            raise unknown_name_error("model", name, MODELS)
        budget = minutes if MODELS[name].examples else None
        _read_settings(dataset, name, preset, seed, holdout, features, budget, settings)
    return names


def _measure(source: Any, model: str, options: dict[str, Any]) -> np.ndarray:
    """Trains a model, and returns the rank of each test item among all items that recommendations include."""
    left_out = set() if MODELS[model].examples else {"tune", "minutes"}  # what only counts has its own search
    result = fit(source, model=model, **{name: value for name, value in options.items() if name not in left_out})
    workdir = WorkDirectory(result.saved.folder.parent)
    return npz.read(workdir.ranks)[find_served_protocol(workdir.read_config().repeats)]


def _compare(
    ranks: Mapping[str, np.ndarray], model: str, cases: Any = slice(None), users: np.ndarray | None = None
) -> list[float]:
    """Returns NDCG@10, HR@10, and the difference of NDCG@10 to the first model with its interval (NaN for none).

    `users`: as for `compute_difference`.
    """
    first, own_ranks = next(iter(ranks)), ranks[model][cases]
    gains, difference = compute_per_user(NDCG, own_ranks), [np.nan] * 3
    if model != first and len(own_ranks) >= MIN_USERS:
        gain = compute_difference(compute_per_user(NDCG, ranks[first][cases]), gains, users)
        difference = [gain.mean, gain.low, gain.high]
    return [gains.mean(), compute_per_user("hr@10", own_ranks).mean(), *difference]


def _tabulate(ranks: Mapping[str, np.ndarray], users: np.ndarray | None = None) -> pd.DataFrame:
    """Returns a row for each model, with COMPARED over all its cases. `users`: as for `compute_difference`."""
    rows = [_compare(ranks, name, users=users) for name in ranks]
    return pd.DataFrame(rows, pd.Index(ranks, name="model"), COMPARED)


@dataclass(frozen=True)
class CrossValidation:
    """What `cross_validate` has measured.

    Attributes:
        summary: a row for each model, over the cases of all folds: the columns of `compare`, without `seconds`. The
            interval of `difference` takes into account that folds share users.
        folds: a row for each fold and model: the number of cases, `ndcg@10`, and its 95 % interval, `low` to `high`.
    """

    summary: pd.DataFrame
    folds: pd.DataFrame

    def __repr__(self) -> str:
        return f"{self.summary}\n\n{self.folds}"

    def plot(self) -> Any:
        """Returns a matplotlib figure of NDCG@10 in each fold, with intervals. Raises UserError without matplotlib."""
        plots.require()
        return plots.plot_folds(self.folds, "NDCG@10 of what came next, trained on what came before")


@speak_python()
def cross_validate(
    data: Any,
    folds: int = 4,
    test_days: float = 7,
    models: Sequence[str | type[Recommender]] = ("auto", "item_transitions", "pop"),
    *,
    user: str | None = None,
    item: str | None = None,
    time: str | None = None,
    **options: Any,
) -> CrossValidation:
    """Measures models on the last `folds` periods of `test_days` each, trained on what came before each period.

    In each period, a user's first action is the test item. Nothing is left on the disk.

    Args:
        data, user, item, time: as for `fit`. The data must have times.
        folds, test_days: number and length of the periods. Times of no known unit: `test_days` are such units.
        models, **options: as for `compare`.

    Raises:
        UserError: for data without times, a period with fewer than MIN_USERS users to measure, and as `compare`.
    """
    if (test_from := options.pop("test_from", None)) is not None:
        raise UserError(
            f"`test_from` must be left out: `folds` and `test_days` choose the cuts. Received: test_from={test_from}"
        )
    options = _choose_holdout(options)
    names = _check_models(models, inputs.FRAME, options, list_arguments(cross_validate))
    sequences = inputs.load_any(data, user, item, time)[1]
    if sequences.features:
        warn("`cross_validate` measures without the features of the data", DataWarning)
    if sequences.times is None:
        raise UserError("`data` must have times to be split by them. Received: none")
    is_length = isinstance(test_days, numbers.Real) and 0 < test_days < np.inf
    if not is_whole_number(folds) or folds < 1 or not is_length:
        raise UserError(f"`folds` and `test_days` must be above 0. Received: folds={folds!r}, test_days={test_days!r}")
    if find_day_form(sequences.times.values) == DAYS_IN_ORDER:
        raise UserError(
            "`data` must have times that count on evenly, such as dates (pandas: pd.to_datetime(times, "
            f'format="%Y%m%d")), to be split by days. Received: {sequences.times.values[0]}'
        )
    width = test_days * find_day_length(sequences.times.meaning)
    end = sequences.times.values.max()
    ranks = {name: np.empty(0, int) for name in names}
    rows, users = list[list[float]](), np.empty(0, object)
    for fold in range(folds):
        begin = end - (folds - fold) * width
        part = sequences.cut_by_time(begin, begin + width)
        test_users = part.users[LeaveOneOut(part).users]
        if len(test_users) < MIN_USERS:
            raise UserError(
                f"`test_days` and `folds` must leave {MIN_USERS} users to measure in each period. Period {fold + 1} of "
                f"{folds} has {len(test_users)}"
            )
        users = np.append(users, test_users)
        for name in names:
            fold_ranks = _measure(part, name, options)
            ranks[name] = np.append(ranks[name], fold_ranks)
            gains = compute_per_user(NDCG, fold_ranks)
            error = 1.96 * gains.std(ddof=1) / np.sqrt(len(gains))
            rows.append([len(gains), gains.mean(), gains.mean() - error, gains.mean() + error])
    index = pd.MultiIndex.from_product([range(1, folds + 1), names], names=["fold", "model"])
    return CrossValidation(_tabulate(ranks, users), pd.DataFrame(rows, index, ["cases", NDCG, "low", "high"]))
