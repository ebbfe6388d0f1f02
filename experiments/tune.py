"""`--tune`: searches a model's grid on the validation item with optuna (extra `tune`). The test item is never measured.

A study lies in one file and goes on where it was stopped or killed: a trial that was under way is tried again, from
its last checkpoint, unless it is killed time and again. A point that was trained before, or failed, is not trained
again. What an ended trial trained is deleted.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert4rec_tf.config import presets
from bert4rec_tf.config.model_settings import MASKED_MODEL
from bert4rec_tf.config.run import SELECT_AND_RETRAIN, Run
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError, in_one_line
from bert4rec_tf.foundation.progress import clock
from bert4rec_tf.foundation.startup import import_tensorflow
from experiments import spaces
from experiments.jobs import Plan
from experiments.tables import Cell

try:
    import optuna
except ImportError as error:
    raise UserError("--tune needs optuna: pip install '.[tune]'") from error

MEASURE = "ndcg@10"
ERROR, GOES_ON_WITH, KILLED = "error", "goes_on_with", "killed"
"""Attributes of trials: why it failed by itself; the number of the stopped or killed one that it goes on with; how
often the process was killed in the middle of its point."""
MOST_KILLED = 3
"""A point whose process was killed so often, as one that needs too much memory is, has failed."""
PROTOCOL = ("protocol", "evaluate_every")
"""Settings of a search's trainings that are no part of what it finds."""
SHORTENED = ("steps", "warmup_steps")
"""Settings that a budget scales."""
FIRST_TRIALS = 4
"""So many are trained to the end before others are pruned by their median."""
QUICK_DISTANCE = 5
"""Steps between the measurements of a quick search, by which trials are pruned."""
BUSY = "another search works in this folder; wait for it, or name another --workdir"


@dataclass
class Search:
    """One study: a model on a data set.

    Attributes:
        model, dataset: what is tuned.
        plan: preset, first seed, budget and whether it is a quick one.
        folder: of the study's file and the trials' runs.
        data_dir: where the data files lie.
    """

    model: str
    dataset: str
    plan: Plan
    folder: Path
    data_dir: Path | None = None

    def __post_init__(self) -> None:
        self.space = spaces.find(self.model)
        self.base = self.run_of({})
        self.sequences = datasets.load(self.dataset, self.data_dir)

    def run_of(self, values: dict[str, Any]) -> Run:
        """Returns the run of a point: trained once, with the validation item held out."""
        often = {"evaluate_every": QUICK_DISTANCE} if self.plan.quick else {}
        cell = Cell(self.dataset, self.model, "tuned", {"protocol": "select", **often})
        plain = self.plan.job(cell, self.plan.seeds[0]).run
        if not values:
            return plain
        changes = spaces.settings_of(self.model, values, plain.flat().get("max_length"))
        free = {**plain.flat(), **changes}
        if self.model == MASKED_MODEL:  # both follow the width
            del free["num_heads"], free["intermediate_dim"]
        return Run.make(self.dataset, self.model, plain.seed, **free)

    def study(self) -> "optuna.Study":
        """Opens the study. Its sampler does not repeat, after a stop, what it drew before."""
        backend = optuna.storages.journal.JournalFileBackend(str(self.folder / "study.jsonl"))
        storage = optuna.storages.JournalStorage(backend)
        study = optuna.create_study(
            storage=storage,
            study_name=f"{self.model} on {self.dataset}, {self.base.digest}",
            direction="maximize",
            pruner=optuna.pruners.MedianPruner(n_startup_trials=FIRST_TRIALS),
            load_if_exists=True,
        )
        study.sampler = optuna.samplers.TPESampler(seed=self.plan.seeds[0] + len(study.trials))
        return study

    def go_on(self, trials: int) -> "optuna.Study":
        """Searches until so many trials have ended, and returns the study."""
        with files.FolderLock(self.folder, busy=BUSY).lock():
            study = self.study()
            self._take_up(study)
            left = trials - len(ended(study))
            while left > 0:
                study.optimize(self.objective, n_trials=1, catch=(Exception,), callbacks=[self._tell])
                left = trials - len(ended(study))
            return study

    def objective(self, trial: "optuna.Trial") -> float:
        """Trains a trial's point and returns its best measurement."""
        values = {name: trial.suggest_categorical(name, list(known)) for name, known in self.space.items()}
        known = _same(trial)
        try:
            return self._measured(trial, values) if known is None else _repeated(trial, known)
        except optuna.TrialPruned:
            raise
        except Exception as error:
            trial.set_user_attr(ERROR, in_one_line(error))
            raise

    def _measured(self, trial: "optuna.Trial", values: dict[str, Any]) -> float:
        """Trains a point; what was trained stays for the next search only where this one is stopped."""
        run, best = self.run_of(values), 0.0

        def watch(row: dict[str, float]) -> None:
            nonlocal best
            best = max(best, row[MEASURE])
            trial.report(best, int(row["step"]))
            if trial.should_prune():
                raise optuna.TrialPruned

        try:
            self.train(run, watch)
        except Exception:
            self._clear(run)
            raise
        self._clear(run)
        return best

    def _clear(self, run: Run) -> None:
        """Deletes what a trial trained, which nobody goes on with."""
        shutil.rmtree(self.folder / run.digest, ignore_errors=True)

    def train(self, run: Run, watch: Callable[[dict[str, float]], None]) -> None:
        """Trains a point, or goes on with it, and has every measurement watched."""
        import keras

        from bert4rec_tf.runs import pipeline

        keras.backend.clear_session()
        experiment = pipeline.open_experiment(
            run,
            self.sequences,
            workdir=self.folder / run.digest,
            prepared_dir=self.folder / "prepared",
            silent=True,
            watch=watch,
        )
        experiment.train()

    def _tell(self, study: "optuna.Study", trial: "optuna.trial.FrozenTrial") -> None:
        state, last = trial.state.name.lower(), trial.last_step
        found = trial.user_attrs.get(ERROR) or f"NDCG@10 {trial.intermediate_values[last]:.4f} at step {last:,}"
        spent = clock(trial.duration.total_seconds())
        print(
            f"{self.model} on {self.dataset}, trial {trial.number}: {state}, {found}, {spent}: {trial.params}",
            flush=True,
        )

    def preset(self, study: "optuna.Study") -> str:
        """Returns the best settings as an entry of `bert4rec_tf/config/presets`, and as a command.

        Both give the run that was measured, apart from PROTOCOL; under a budget with all steps of the preset. Where the
        preset's number of steps was selected before, the entry has its number selected again.
        """
        start, changed = self._start(), self._changes(study.best_trial.params)
        flags = " ".join(f"--{setting}={value}" for setting, value in changed.items())
        settings = {**start.settings, **start.search, **changed}
        lines = [
            "# An entry for bert4rec_tf/config/presets:",
            "Preset(",
            *(f"    {_quoted(part)}," for part in (start.name, self.dataset, self.model, *self._known(study))),
            "    {",
            *(f"        {_quoted(setting)}: {_quoted(value)}," for setting, value in settings.items()),
            "    },",
            "),",
            "# Or by flags:",
            f"{start.command} {flags}",
        ]
        return "\n".join(lines)

    def _start(self) -> presets.Preset:
        return presets.find(self.plan.preset if self.model == MASKED_MODEL else "fast", self.dataset, self.model)

    def _changes(self, values: dict[str, Any]) -> dict[str, Any]:
        """Returns the settings of a point, and whatever else its run has that its preset has not."""
        flat = self.run_of(values).flat()
        found = {name: flat[name] for name in (*values, *(["max_predictions"] if self.model == MASKED_MODEL else []))}
        start = self._start()
        if start.search:  # steps that were selected before are not those of these settings
            found["protocol"] = SELECT_AND_RETRAIN
        given = presets.make_run(self.dataset, self.model, start.name, self.plan.seeds[0], **found).flat()
        left = {*PROTOCOL, *(SHORTENED if self.plan.budget != 1 else ())}
        rest = {name: value for name, value in flat.items() if name not in left and value != given.get(name)}
        return {**found, **rest}

    def _known(self, study: "optuna.Study") -> list[str]:
        """Says of the best settings what to expect, and how long the search took."""
        budget = self.plan.budget
        share = "" if budget == 1 else f", with {100 * budget:.3g} % of the steps"
        seconds = sum(trial.duration.total_seconds() for trial in study.trials if trial.duration)
        return [
            f"NDCG@10 {study.best_value:.4f} on the validation item (measured{share}); "
            "the test item is not measured yet.",
            f"Not measured yet; the search, of {len(ended(study))} trials, took {clock(seconds)}.",
        ]

    def _take_up(self, study: "optuna.Study") -> None:
        """Puts each trial in the queue again that was stopped or killed, once; not what is killed time and again."""
        of_dead_processes = study.get_trials(states=[optuna.trial.TrialState.RUNNING])
        killed = {trial.number for trial in of_dead_processes}
        for number in killed:
            study.tell(number, state=optuna.trial.TrialState.FAIL)
        taken = {trial.user_attrs.get(GOES_ON_WITH) for trial in study.trials}
        for trial in study.get_trials(states=[optuna.trial.TrialState.FAIL]):
            if ERROR in trial.user_attrs or trial.number in taken:
                continue
            times = trial.user_attrs.get(KILLED, 0) + (trial.number in killed)
            attributes = {GOES_ON_WITH: trial.number, KILLED: times}
            if times < MOST_KILLED:
                study.enqueue_trial(trial.params, user_attrs=attributes)
            else:
                self._give_up(study, trial, {**attributes, ERROR: f"its process was killed {times} times"})

    def _give_up(self, study: "optuna.Study", trial: "optuna.trial.FrozenTrial", attributes: dict[str, Any]) -> None:
        """Counts the point of a killed trial as failed, by a trial of its own, for what has ended cannot be changed."""
        failed = optuna.trial.create_trial(
            state=optuna.trial.TrialState.FAIL,
            params=trial.params,
            distributions=trial.distributions,
            user_attrs=attributes,
        )
        study.add_trial(failed)
        print(f"{self.model} on {self.dataset}, trial {trial.number}: {attributes[ERROR]}: {trial.params}", flush=True)
        if set(trial.params) == set(self.space):
            self._clear(self.run_of(trial.params))


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def ended(study: "optuna.Study") -> list["optuna.trial.FrozenTrial"]:
    """Returns the trials that count: complete, pruned, or failed by themselves; not those stopped or killed."""
    states = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    return [trial for trial in study.trials if trial.state in states or ERROR in trial.user_attrs]


def _same(trial: "optuna.Trial") -> "optuna.trial.FrozenTrial | None":
    """Returns an ended trial of the same point, whose training would end alike."""
    return next((other for other in ended(trial.study) if other.params == trial.params), None)


def _repeated(trial: "optuna.Trial", known: "optuna.trial.FrozenTrial") -> float:
    """Ends a trial as the ended one of its point did."""
    if ERROR in known.user_attrs:
        raise UserError(known.user_attrs[ERROR])
    trial.report(known.intermediate_values[known.last_step], known.last_step)
    if known.state == optuna.trial.TrialState.PRUNED:
        raise optuna.TrialPruned
    return known.value


def main(
    models: Sequence[str],
    plan: Plan,
    folder: Path,
    trials: int,
    data_dir: Path | None = None,
    threads: int | None = None,
) -> int:
    """Searches for each model on each data set of the plan, and prints the best settings.

    Returns:
        The exit code: 1 where no trial of a search came to its end.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for model in models:
        spaces.find(model)
    _start(threads)
    failed = 0
    for dataset in plan.datasets:
        for model in models:
            search = Search(model, dataset, plan, folder / f"{dataset}-{model}", data_dir)
            study = search.go_on(trials)
            if study.get_trials(states=[optuna.trial.TrialState.COMPLETE]):
                print(search.preset(study), flush=True)
            else:
                print(f"{model} on {dataset}: no trial came to its end", flush=True)
                failed = 1
    return failed


def _start(threads: int | None) -> None:
    import_tensorflow()
    from bert4rec_tf.runs import pipeline

    if threads is not None:
        pipeline.set_threads(threads)
