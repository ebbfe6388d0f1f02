"""`fit(..., tune=20)`: searches settings on the validation items with Optuna (extra `tune`).

Every trial is trained as in the phase SELECT. Trials that fall behind the median are ended early. TRIALS keeps what was
measured; the next trial depends only on that and on the seed, so a search that was stopped or killed resumes.
"""

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import keras
import pandas as pd

from bert4rec_tf.config.run_record import SELECT, Run
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.evaluation.metrics import NDCG
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError, format_error
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
`curve`, the best NDCG@10 up to each measurement; its `state`, as Optuna names it; and the `error` of a failed one.
While a trial runs, `attempts` counts those whose process was killed, and this one."""

MOST_ATTEMPTS = 3
"""A trial whose process was killed so often, perhaps because it needs too much memory, has failed."""

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
    silent: bool,
) -> tuple[dict[str, Any], pd.DataFrame]:
    """Searches for the settings with the best NDCG@10 on the validation items. The first trial has the usual ones.

    Args:
        make_run: makes the run of any settings, in place of the usual ones.
        fixed: the settings that the user named, which are not searched.
        num_trials: number of trials, together with those that `folder` holds.
        folder: for TRIALS, and the training of the current trial.

    Returns the settings of the best trial; and a row for each trial, the best first: the values that were searched, and
    `ndcg@10` (of a trial that was ended early: until then; NaN if it failed).

    Raises UserError as `run_trials` does, and if the model has nothing to search.
    """
    usual = make_run()
    space = find_space(usual, fixed)
    if MODELS[usual.model].examples is None or not space:
        raise UserError(
            f"`tune` needs a model with settings to search. Received: tune={num_trials}, model={usual.model}"
        )
    trials = run_trials(
        lambda values: make_run(**derive_settings(usual, fixed, values), protocol=SELECT),
        usual,
        space,
        sequences,
        num_trials,
        folder,
        silent,
    )
    best = find_best(trials)
    table = pd.DataFrame([{**trial["values"], NDCG: trial["curve"][-1:] or [None]} for trial in trials]).explode(NDCG)
    return derive_settings(usual, fixed, best["values"]), table.sort_values(
        NDCG, ascending=False, kind="stable", ignore_index=True
    )


def run_trials(
    make_run: Callable[[dict[str, Any]], Run],
    usual: Run,
    space: dict[str, list[Any]],
    sequences: Sequences,
    num_trials: int,
    folder: Path,
    silent: bool = False,
) -> list[dict[str, Any]]:
    """Trains until `folder` has `num_trials` trials, and returns their entries of TRIALS.

    Args:
        make_run: makes the run of a trial's values.
        usual: the run whose values the first trial has, if they are in the space. That trial must succeed.
        space: setting -> the values to try.

    Raises UserError without Optuna, or if `folder` holds another search; and the error of the usual run's trial.
    """
    _import_optuna()  # reports its absence before the first training
    settings = usual.flatten()
    usual_values = {name: settings[name] for name in space if settings[name] in space[name]}
    empty: dict[str, Any] = {"run": usual.to_dict(), "data": sequences.fingerprint, "space": space}
    empty |= {"attempts": 0, "trials": []}
    progress = Progress("tuning", num_trials, silent=silent)
    with files.FolderLock(folder, busy=BUSY).lock():
        record = {**empty, **files.read_json(folder / TRIALS)} if (folder / TRIALS).exists() else empty
        if {**record, "attempts": 0, "trials": []} != empty:
            raise UserError(f"{folder}: holds a search of other data or settings; name another `workdir`")
        trials = record["trials"]
        while len(trials) < num_trials:
            trial = _ask(space, trials, usual.seed, usual_values)
            entry = next((row for row in trials if row["values"] == trial.params), None)
            if entry is None:
                record["attempts"] += 1
                files.write_json(folder / TRIALS, record)
                try:
                    is_usual = not trials and trial.params == usual_values
                    entry = _train(make_run, sequences, folder, trial, record["attempts"], must_succeed=is_usual)
                finally:  # but not if the process is killed
                    record["attempts"] = 0
                    files.write_json(folder / TRIALS, record)
            trials.append(entry)
            files.write_json(folder / TRIALS, record)
            outcome = entry.get("error") or f"NDCG@10 {entry['curve'][-1]:.4f}"
            values = ", ".join(f"{name}={value}" for name, value in trial.params.items())
            progress.say(f"tuning: trial {len(trials)} of {num_trials}: {entry['state'].lower()}, {outcome}: {values}")
        files.remove_folder(folder / PREPARED)
    progress.close()
    return trials


def find_best(trials: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Returns the trial with the best NDCG@10 of those that were trained to their end. Raises UserError without one."""
    complete = [trial for trial in trials if trial["state"] == COMPLETE]
    if not complete:
        errors = dict.fromkeys(trial["error"] for trial in trials if "error" in trial)
        raise UserError(f"no trial could be trained to its end: {'; '.join(errors)}")
    return max(complete, key=lambda trial: trial["curve"][-1])


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


def _ask(space: dict[str, list[Any]], trials: list[dict[str, Any]], seed: int, first: dict[str, Any]) -> Any:
    """Returns Optuna's next trial after others. It depends on the arguments alone.

    `first`: the values of the first trial; it is ignored if it lacks a setting of the space.
    """
    optuna = _import_optuna()
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=seed + len(trials)),
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
    if not trials and first.keys() == space.keys():
        study.enqueue_trial(first)
    return study.ask(distributions)


def _train(
    make_run: Callable[[dict[str, Any]], Run],
    sequences: Sequences,
    folder: Path,
    trial: Any,
    attempt: int,
    must_succeed: bool,
) -> dict[str, Any]:
    """Trains or resumes a trial, deletes its folder, and returns its entry of TRIALS.

    A trial fails if its settings do not fit each other, its loss is not finite, it needs too much memory, or any other
    error occurs. If it `must_succeed`, the error is raised.
    """
    optuna, curve, ending = _import_optuna(), list[float](), {"state": COMPLETE}

    def watch(row: dict[str, float]) -> None:
        curve.append(max([row[NDCG], *curve[-1:]]))
        trial.report(curve[-1], len(curve) - 1)
        if trial.should_prune():
            raise optuna.TrialPruned

    keras.backend.clear_session()
    workdir = None
    try:
        run = make_run(trial.params)
        workdir = folder / run.digest
        if attempt > MOST_ATTEMPTS:
            raise UserError(f"its process was killed {MOST_ATTEMPTS} times")
        options: dict[str, Any] = {"silent": True, "watch": watch}
        open_experiment(run, sequences, workdir=workdir, prepared_dir=folder / PREPARED, **options).train()
    except optuna.TrialPruned:
        ending = {"state": PRUNED}
    except Exception as error:
        if must_succeed:
            raise
        ending = {"state": FAIL, "error": format_error(error)}
    if workdir is not None:
        files.remove_folder(workdir)
    return {"values": trial.params, "curve": curve, **ending}
