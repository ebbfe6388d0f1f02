"""`fit(..., tune=20)`: searches settings on the validation items with Optuna (extra `tune`).

Every trial is trained as in SELECT. Trials that fall behind the median are ended early. TRIALS keeps what was measured;
the next trial depends only on that and on the seed, so a search that was stopped or killed resumes.
"""

import json
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import keras
import pandas as pd

from bert4rec_tf.config.run_record import SELECT, TRAININGS, Run, list_settings
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.evaluation.metrics import NDCG
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError, format_error
from bert4rec_tf.foundation.progress import Progress
from bert4rec_tf.models import MODELS
from bert4rec_tf.runs.experiment import open_experiment

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

FINAL = ("final_share", "scale_final_steps")
"""Settings of the training after the selection."""

FIRST_TRIALS = 4
"""This many trials are trained to the end before others are ended early."""

PREPARED, TRIALS = "prepared", "trials.log"
"""Names in the folder of a search. TRIALS is Optuna's journal of the study, JSON lines."""

SEARCHED, REPEATED, ERROR = "searched", "repeated", "error"
"""Optuna's `user_attrs`. SEARCHED, of the study: the usual run, the data and the space. Of a trial: REPEATED, why a
later trial repeats it (KILLED, STOPPED); and the ERROR of a failed one."""

KILLED, STOPPED = "killed", "stopped"
MAX_ATTEMPTS = 3
"""A trial whose process was killed so often, perhaps because it needs too much memory, has failed."""

BUSY = "another process searches in this folder; wait for it, or name another `workdir`"


def find_space(run: Run, fixed: Collection[str]) -> dict[str, list[Any]]:
    """Returns setting -> the values to try, which include the run's own. Settings in `fixed` keep their value."""
    start = {name: value for name, value in run.flatten().items() if value and name in FACTORS and name not in fixed}
    space = {name: sorted({value, *(_multiply(value, by) for by in FACTORS[name])}) for name, value in start.items()}
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
    run = make_run()
    space = find_space(run, fixed)
    if MODELS[run.model].examples is None or not space:
        raise UserError(f"`tune` needs a model with settings to search. Received: tune={num_trials}, model={run.model}")
    if "protocol" in fixed and SELECT not in TRAININGS[run.training.protocol]:
        raise UserError(
            f"`tune` needs a protocol with validation items. Received: tune={num_trials}, "
            f"protocol={run.training.protocol}"
        )
    # What only a later training reads has its default, which is no mistake beside SELECT.
    trial_settings = {"protocol": SELECT, **{name: list_settings()[name].default for name in FINAL if name in fixed}}
    trials = run_trials(
        lambda values: make_run(**derive_settings(run, fixed, values), **trial_settings),
        run,
        space,
        sequences,
        num_trials,
        folder,
        silent,
    )
    best = find_best_trial(trials)
    sorted_trials = sorted(trials, key=lambda trial: (trial is best, get_ndcg(trial) or 0), reverse=True)
    table = pd.DataFrame([{**trial.params, NDCG: get_ndcg(trial)} for trial in sorted_trials])
    return derive_settings(run, fixed, best.params), table


def run_trials(
    make_run: Callable[[dict[str, Any]], Run],
    run: Run,
    space: dict[str, list[Any]],
    sequences: Sequences,
    num_trials: int,
    folder: Path,
    silent: bool = False,
) -> list[Any]:
    """Trains until `folder` has `num_trials` trials, and returns them as Optuna's `FrozenTrial`s.

    Args:
        make_run: makes the run of a trial's values.
        run: the usual run, whose values the first trial has, if they are in the space. That trial must succeed.
        space: setting -> the values to try.

    Raises UserError without Optuna, or if `folder` holds another search; and the error of the usual run's trial.
    """
    with files.FolderLock(folder, BUSY).lock():
        study = _open_study(run, space, sequences, folder)
        _repeat_interrupted(study)
        progress = Progress("tuning", num_trials, silent=silent)
        while (trial := _ask_for_next_trial(study, space, run.seed, num_trials)) is not None:
            try:
                is_first = not any(past_trial.state.is_finished() for past_trial in list_trials(study))
                must_succeed = is_first and trial.params == _find_usual_values(run, space)
                state = _copy_equal(study, trial) or _train(make_run, sequences, folder, trial, must_succeed)
            except BaseException:  # but not if the process is killed
                trial.set_user_attr(REPEATED, STOPPED)
                raise
            finished_trial = study.tell(
                trial, get_ndcg(study.trials[trial.number]) if state.name == "COMPLETE" else None, state
            )
            outcome = finished_trial.user_attrs.get(ERROR) or f"NDCG@10 {get_ndcg(finished_trial):.4f}"
            values = ", ".join(f"{name}={value}" for name, value in finished_trial.params.items())
            number = len(list_trials(study))
            progress.say(f"tuning: trial {number} of {num_trials}: {state.name.lower()}, {outcome}: {values}")
        files.remove_folder(folder / PREPARED)
        progress.close()
        return list_trials(study)


def list_trials(study: Any) -> list[Any]:
    """Returns a study's trials, without those that later ones repeat."""
    return [trial for trial in study.trials if REPEATED not in trial.user_attrs]


def get_ndcg(trial: Any) -> float | None:
    """Returns the best NDCG@10 of a trial up to its end; None if it failed or nothing was measured."""
    values = {} if ERROR in trial.user_attrs else trial.intermediate_values
    return values[max(values)] if values else None


def find_best_trial(trials: Sequence[Any]) -> Any:
    """Returns the trial with the best NDCG@10 of those that were trained to their end. Raises UserError without one."""
    complete_trials = [trial for trial in trials if trial.state.name == "COMPLETE"]
    if not complete_trials:
        errors = dict.fromkeys(trial.user_attrs[ERROR] for trial in trials if ERROR in trial.user_attrs)
        raise UserError(f"no trial could be trained to its end: {'; '.join(errors)}")
    return max(complete_trials, key=lambda trial: trial.value)


def derive_settings(run: Run, fixed: Collection[str], values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of a trial, and the settings that follow from them: with other batches, those of the steps."""
    batch_ratio = run.training.batch_size / values.get("batch_size", run.training.batch_size)
    scaled_names = {"steps", "evaluate_every"} - {*fixed} if batch_ratio != 1 and "steps" not in fixed else set()
    if scaled_names and run.training.stop_after:
        scaled_names.add("stop_after")
    steps = {name: max(1, round(getattr(run.training, name) * batch_ratio)) for name in sorted(scaled_names)}
    return {**values, **steps}


def _find_usual_values(run: Run, space: dict[str, list[Any]]) -> dict[str, Any]:
    settings = run.flatten()
    return {name: settings[name] for name in space if settings[name] in space[name]}


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise UserError("`tune` needs Optuna: pip install 'bert4rec-tf[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _open_study(run: Run, space: dict[str, list[Any]], sequences: Sequences, folder: Path) -> Any:
    optuna = _import_optuna()
    identity = json.loads(json.dumps({"run": run.to_dict(), "data": sequences.fingerprint, "space": space}))
    first = _find_usual_values(run, space)
    _cut_torn_line(folder / TRIALS)
    journal = optuna.storages.journal.JournalFileBackend(str(folder / TRIALS))
    try:
        study = optuna.create_study(
            storage=optuna.storages.JournalStorage(journal),
            study_name="tuning",
            direction="maximize",
            pruner=optuna.pruners.MedianPruner(n_startup_trials=FIRST_TRIALS),
            load_if_exists=True,
        )
    except (ValueError, KeyError) as error:
        raise UserError(f"{folder / TRIALS}: is damaged ({error}); delete {folder} to search anew") from error
    if SEARCHED not in study.user_attrs:
        if first.keys() == space.keys():
            study.enqueue_trial(first)
        study.set_user_attr(SEARCHED, identity)
    elif study.user_attrs[SEARCHED] != identity:
        raise UserError(f"{folder}: holds a search of other data or settings; name another `workdir`")
    return study


def _cut_torn_line(path: Path) -> None:
    """Cuts a file after its last whole line. A kill can leave a part of a line, after which Optuna cannot go on."""
    if not path.exists():
        return
    content = path.read_bytes()
    end_of_last_line = content.rfind(b"\n") + 1
    if end_of_last_line < len(content):
        os.truncate(path, end_of_last_line)


def _ask_for_next_trial(study: Any, space: dict[str, list[Any]], seed: int, num_trials: int) -> Any:
    """Returns the next trial, which depends on the others and the seed alone; None if there are enough."""
    optuna = _import_optuna()
    started_trials = [trial for trial in list_trials(study) if trial.state.name != "WAITING"]
    if len(started_trials) >= num_trials:
        return None
    study.sampler = optuna.samplers.TPESampler(seed=(seed + len(started_trials)) % 2**32)
    choices = optuna.distributions.CategoricalDistribution
    return study.ask({name: choices(values) for name, values in space.items()})


def _repeat_interrupted(study: Any) -> None:
    """Has the trials of ended processes trained again, from their last checkpoints; or fails one killed too often."""
    optuna = _import_optuna()
    for trial in study.trials:
        if trial.state.name == "RUNNING":
            interrupted_trial = optuna.trial.Trial(study, trial._trial_id)
            equal_trials = [past_trial for past_trial in study.trials if past_trial.params == trial.params]
            kills = sum(past_trial.user_attrs.get(REPEATED) == KILLED for past_trial in equal_trials)
            if REPEATED not in trial.user_attrs and kills == MAX_ATTEMPTS - 1:
                interrupted_trial.set_user_attr(ERROR, f"its process was killed {MAX_ATTEMPTS} times")
            else:
                interrupted_trial.set_user_attr(REPEATED, trial.user_attrs.get(REPEATED, KILLED))
                queue = [past_trial for past_trial in study.trials if past_trial.state.name == "WAITING"]
                if not any(queued.system_attrs.get("fixed_params") == trial.params for queued in queue):
                    study.enqueue_trial(trial.params)  # else a kill has come before `tell`
            study.tell(interrupted_trial, state=optuna.trial.TrialState.FAIL)


def _copy_equal(study: Any, trial: Any) -> Any:
    """Gives a trial the result of an earlier one with the same values. Returns its state; None if there is none."""
    for past_trial in list_trials(study):
        if past_trial.params == trial.params and past_trial.state.is_finished():
            for step, value in past_trial.intermediate_values.items():
                trial.report(value, step)
            if ERROR in past_trial.user_attrs:
                trial.set_user_attr(ERROR, past_trial.user_attrs[ERROR])
            return past_trial.state
    return None


def _train(
    make_run: Callable[[dict[str, Any]], Run], sequences: Sequences, folder: Path, trial: Any, must_succeed: bool
) -> Any:
    """Trains or resumes a trial, deletes its folder, and returns its state.

    A trial fails if its settings do not fit each other, its loss is not finite, it needs too much memory, or any other
    error occurs. If it `must_succeed`, the error is raised.
    """
    optuna, curve = _import_optuna(), list[float]()
    states = optuna.trial.TrialState

    def watch(row: dict[str, float]) -> None:
        curve.append(max([row[NDCG], *curve[-1:]]))
        trial.report(curve[-1], len(curve) - 1)
        if trial.should_prune():
            raise optuna.TrialPruned

    keras.backend.clear_session()
    workdir, state = None, states.COMPLETE
    try:
        run = make_run(trial.params)
        workdir = folder / run.digest
        options: dict[str, Any] = {"prepared_dir": folder / PREPARED, "silent": True, "watch": watch}
        open_experiment(run, sequences, workdir=workdir, **options).train()
    except optuna.TrialPruned:
        state = states.PRUNED
    except Exception as error:
        if must_succeed:
            raise
        trial.set_user_attr(ERROR, format_error(error))
        state = states.FAIL
    if workdir is not None:
        files.remove_folder(workdir)
    return state
