"""`fit(..., tune=20)`: searches settings on the validation items with Optuna (extra `tune`).

Every trial is trained as in the phase SELECT. Trials that fall behind the median are ended early. TRIALS keeps what was
measured; the next trial depends only on that and on the seed, so a search that was stopped or killed resumes.
"""

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import keras
import pandas as pd

from bert4rec_tf.config.run_record import SELECT, Run
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.evaluation.metrics import NDCG
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import Progress
from bert4rec_tf.models import MODELS
from bert4rec_tf.runs.driver import open_experiment

FACTORS: dict[str, tuple[float, ...]] = {
    "hidden_dim": (0.5, 2),
    "max_length": (0.5, 2),
    "batch_size": (0.5, 2),
    "learning_rate": (0.3, 3),
    "l2": (0.1, 10),
}
"""Setting -> what multiplies its usual value, which is tried too, for the settings that the model has. With other
batches, the number of steps changes so that as many examples are read."""

DROPOUTS = (0.0, 0.1, 0.2, 0.3, 0.5)

FIRST_TRIALS = 4
"""This many trials are trained to the end before others are ended early."""

PREPARED, TRIALS = "prepared", "trials.json"
"""Names in the folder of a search. TRIALS has the usual run, the data, the space, and of every trial: its `values`; its
`curve`, the best NDCG@10 up to each measurement; and its `state`, as Optuna names it."""

COMPLETE, PRUNED, FAIL = "COMPLETE", "PRUNED", "FAIL"
BUSY = "another process is searching in this folder; wait for it, or name another `workdir`"


def find_space(run: Run, fixed: Collection[str]) -> dict[str, list[Any]]:
    """Returns setting -> the values to try, which include the run's own. Settings in `fixed` keep their value."""
    usual = {name: value for name, value in run.flatten().items() if value and name in FACTORS and name not in fixed}
    space = {name: sorted({value, *(_multiply(value, by) for by in FACTORS[name])}) for name, value in usual.items()}
    if "dropout" in run.flatten().keys() - fixed:
        space["dropout"] = sorted({*DROPOUTS, run.flatten()["dropout"]})
    return space


def _multiply(value: float, factor: float) -> float:
    return max(1, round(value * factor)) if isinstance(value, int) else float(f"{value * factor:.3g}")


def tune_settings(
    make_run: Callable[..., Run],
    fixed: Collection[str],
    sequences: Sequences,
    num_trials: int,
    folder: Path,
    silent: bool = False,
) -> tuple[dict[str, Any], pd.DataFrame]:
    """Searches for the settings with the best NDCG@10 on the validation items. The first trial has the usual ones.

    Args:
        make_run: makes the run of any settings, in place of the usual ones.
        fixed: the settings that the user named, which are not searched.
        num_trials: number of trials, together with those that `folder` holds.
        folder: for TRIALS, and the training of the current trial.

    Returns the settings of the best trial; and a row for each trial, the best first: the values that were searched, and
    `ndcg@10` (of a trial that was ended early: until then; NaN if it failed).

    Raises UserError without Optuna, if the model has nothing to search, the first trial fails, or `folder` holds
    another search.
    """
    _import_optuna()  # reports its absence before the first training
    usual = make_run()
    space = find_space(usual, fixed)
    if MODELS[usual.model].examples is None or not space:
        raise UserError(
            f"`tune` needs a model with settings to search. Received: tune={num_trials}, model={usual.model}"
        )
    record: dict[str, Any] = {"run": usual.to_dict(), "data": sequences.fingerprint, "space": space, "trials": []}
    progress = Progress("tuning", num_trials, silent=silent)
    with files.FolderLock(folder, busy=BUSY).lock():
        if (folder / TRIALS).exists():
            earlier = files.read_json(folder / TRIALS)
            if {**earlier, "trials": []} != record:
                raise UserError(f"{folder}: holds a search of other data or settings; name another `workdir`")
            record = earlier
        trials = record["trials"]
        while len(trials) < num_trials:
            trial = _ask(space, trials, usual)
            entry = next((one for one in trials if one["values"] == trial.params), None)
            if entry is None:
                settings = {**derive_settings(usual, fixed, trial.params), "protocol": SELECT}
                entry = _train(partial(make_run, **settings), sequences, folder, trial, must_succeed=not trials)
            trials.append(entry)
            files.write_json(folder / TRIALS, record)
            outcome = f"NDCG@10 {entry['curve'][-1]:.4f}" if entry["curve"] else "no measurement"
            values = ", ".join(f"{name}={value}" for name, value in trial.params.items())
            progress.say(f"tuning: trial {len(trials)} of {num_trials}: {outcome}, {entry['state'].lower()}: {values}")
        files.remove_folder(folder / PREPARED)
    progress.close()
    best = max((trial for trial in trials if trial["state"] == COMPLETE), key=lambda trial: trial["curve"][-1])
    table = pd.DataFrame([{**trial["values"], NDCG: trial["curve"][-1:] or [None]} for trial in trials]).explode(NDCG)
    return derive_settings(usual, fixed, best["values"]), table.sort_values(
        NDCG, ascending=False, kind="stable", ignore_index=True
    )


def derive_settings(usual: Run, fixed: Collection[str], values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of a trial, and the settings that follow from them: with other batches, those of the steps."""
    share = usual.training.batch_size / values.get("batch_size", usual.training.batch_size)
    followers = ("steps", "evaluate_every") if share != 1 and "steps" not in fixed else ()
    steps = {name: max(1, round(getattr(usual.training, name) * share)) for name in followers if name not in fixed}
    return {**values, **steps}


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise UserError("`tune` needs Optuna: pip install 'bert4rec-tf[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _ask(space: dict[str, list[Any]], trials: list[dict[str, Any]], usual: Run) -> Any:
    """Returns Optuna's next trial after others. It depends on these and the run's seed alone."""
    optuna = _import_optuna()
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=usual.seed + len(trials)),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=FIRST_TRIALS),
    )
    distributions = {name: optuna.distributions.CategoricalDistribution(values) for name, values in space.items()}
    for trial in trials:
        study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState[trial["state"]],
                value=trial["curve"][-1] if trial["state"] == COMPLETE else None,
                params={name: trial["values"][name] for name in space},
                distributions=distributions,
                intermediate_values=dict(enumerate(trial["curve"])),
            )
        )
    if not trials:
        settings = usual.flatten()
        study.enqueue_trial({name: settings[name] for name in space})
    return study.ask(distributions)


def _train(
    make_run: Callable[[], Run], sequences: Sequences, folder: Path, trial: Any, must_succeed: bool
) -> dict[str, Any]:
    """Trains or resumes a trial, deletes its folder, and returns its entry of TRIALS.

    A trial with settings that do not fit each other, or whose loss is not finite, fails; if it `must_succeed`, with a
    UserError.
    """
    optuna, curve, state = _import_optuna(), list[float](), COMPLETE

    def watch(row: dict[str, float]) -> None:
        curve.append(max([row[NDCG], *curve[-1:]]))
        trial.report(curve[-1], len(curve) - 1)
        if trial.should_prune():
            raise optuna.TrialPruned

    keras.backend.clear_session()
    workdir = None
    try:
        run = make_run()
        workdir = folder / run.digest
        options: dict[str, Any] = {"silent": True, "watch": watch}
        open_experiment(run, sequences, workdir=workdir, prepared_dir=folder / PREPARED, **options).train()
    except optuna.TrialPruned:
        state = PRUNED
    except UserError:
        if must_succeed:
            raise
        state = FAIL
    if workdir is not None:
        files.remove_folder(workdir)
    return {"values": trial.params, "curve": curve, "state": state}
