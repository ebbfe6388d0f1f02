"""`--tune`: searches a model's grid on the validation item with optuna (extra `tune`). The test item is never measured.

A study is one file. It resumes after a stop or a kill: the interrupted trial is tried again, from its last checkpoint.
A point that was already trained, or failed, is not trained again. When a trial ends, its run's folder is deleted.
"""

import pprint
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert4rec_tf.config import presets
from bert4rec_tf.config.model_settings import MASKED_MODEL
from bert4rec_tf.config.run_record import SELECT_AND_RETRAIN, Run
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.evaluation.metrics import NDCG
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError, format_error, unknown_name_error
from bert4rec_tf.foundation.progress import format_clock
from bert4rec_tf.foundation.startup import import_tensorflow
from experiments.plan import SELECT_ONLY, Plan
from experiments.tables import PROPORTIONS, WIDTHS, Variant, compute_max_predictions

try:
    import optuna
except ImportError as error:
    raise UserError("--tune needs optuna: pip install '.[tune]'") from error

L2 = (1.0, 0.1, 0.01, 0.001, 0.0001)
DROPOUT = {"dropout": tuple(tenths / 10 for tenths in range(10))}
GRU = {**DROPOUT, "learning_rate": (0.01, 0.02, 0.05, 0.1, 0.2), "momentum": (0.0, 0.1, 0.2, 0.3)}
MAX_LOSS = {"loss": ("bpr_max", "top1_max"), "regularization": (0.0, 0.5, 1.0), "alpha": (0.0, 0.25, 0.5, 0.75, 1.0)}
CASER = {"l2": (*L2, 1e-6), "markov_order": tuple(range(1, 10)), "num_targets": (1, 2, 3)}
CLOZE = {"weight_decay": L2, "attention_dropout": DROPOUT["dropout"], "mask_proportion": PROPORTIONS}

SPACES: dict[str, dict[str, tuple[Any, ...]]] = {
    "bpr_mf": {"hidden_dim": WIDTHS, "l2": L2},
    "ncf": {"hidden_dim": WIDTHS, "l2": L2, "train_negatives": tuple(range(1, 11))},
    "fpmc": {"hidden_dim": WIDTHS, "l2": L2},
    "gru4rec": {"hidden_dim": WIDTHS, **GRU},
    "gru4rec_plus": {"hidden_dim": WIDTHS, **GRU, **MAX_LOSS},
    "caser": {"hidden_dim": WIDTHS, **DROPOUT, **CASER},
    "sasrec": {"hidden_dim": WIDTHS, **DROPOUT, "weight_decay": (*L2, 0.0), "num_layers": (1, 2, 3)},
    "bert4rec": {"hidden_dim": WIDTHS, **DROPOUT, **CLOZE},
}
"""Model -> setting -> its values: the paper's grid (section 4.3), and the settings that the model's own paper and
program vary. The paper's l2 is `weight_decay` if the optimizer applies it; Adagrad has none. POP and item_transitions
are missing, because they have no training steps."""

ERROR, STOPPED, RETRY_OF = "error", "stopped", "retry_of"
"""Attributes of a trial: why it failed by itself; that it was stopped, not killed; the trial that it repeats."""
MOST_KILLED = 3
"""After this many kills of its process, perhaps because it needs too much memory, a point has failed."""
FIRST_TRIALS = 4
"""This many trials are trained to the end before others are pruned by the median."""
QUICK_DISTANCE = 5
"""Steps between measurements in a quick search. Trials are pruned at measurements."""

PROTOCOL = (*SELECT_ONLY, "evaluate_every")
"""Settings of the search's trainings that are not part of its result."""
SHORTENED = ("steps", "warmup_steps")
"""Settings that a budget scales."""
BUSY = "another search works in this folder; wait for it, or name another --workdir"

States = optuna.trial.TrialState


def find_space(model: str) -> dict[str, tuple[Any, ...]]:
    """Returns the grid of a model. Raises UserError if there is none."""
    if model not in SPACES:
        raise unknown_name_error("model to tune", model, SPACES)
    return SPACES[model]


@dataclass
class Search:
    """One study: a model on a data set.

    `plan` gives the preset, the budget, `quick`, and the seed, its first one. `folder` is for the study's file and the
    trials' runs. `data_dir` has the data files.
    """

    model: str
    dataset: str
    plan: Plan
    folder: Path
    data_dir: Path | None = None

    def __post_init__(self) -> None:
        self.space = find_space(self.model)
        self.is_masked = self.model == MASKED_MODEL
        self.base = self.make_run({})
        self.sequences = datasets.load(self.dataset, self.data_dir)

    def make_run(self, values: dict[str, Any]) -> Run:
        """Returns the run of a point, which trains once, with the validation item held out. {} is the preset's."""
        often = {"evaluate_every": QUICK_DISTANCE} if self.plan.quick else {}
        variant = Variant("tuned", self.model, changes={**SELECT_ONLY, **often})
        plain = self.plan.make_run(self.dataset, variant, self.plan.seeds[0])
        if not values:
            return plain
        settings = {**plain.flatten(), **values}
        if self.is_masked:
            settings["max_predictions"] = compute_max_predictions(settings["mask_proportion"], settings["max_length"])
            del settings["num_heads"], settings["intermediate_dim"]  # both follow the width
        return Run.make(self.dataset, self.model, plain.seed, **settings)

    def open_study(self) -> optuna.Study:
        """Opens the study. After a resume, its sampler does not repeat earlier draws."""
        backend = optuna.storages.journal.JournalFileBackend(str(self.folder / "study.jsonl"))
        study = optuna.create_study(
            storage=optuna.storages.JournalStorage(backend),
            study_name=f"{self.model} on {self.dataset}, {self.base.digest}",
            direction="maximize",
            pruner=optuna.pruners.MedianPruner(n_startup_trials=FIRST_TRIALS),
            load_if_exists=True,
        )
        study.sampler = optuna.samplers.TPESampler(seed=self.plan.seeds[0] + len(study.trials))
        return study

    def resume(self, trials: int) -> optuna.Study:
        """Searches until `trials` trials have ended, and returns the study."""
        with files.FolderLock(self.folder, busy=BUSY).lock():
            study = self.open_study()
            queue_interrupted(study)
            while len(list_ended(study)) < trials:
                study.optimize(self.objective, n_trials=1, catch=(Exception,), callbacks=[self._report])
            return study

    def objective(self, trial: optuna.Trial) -> float:
        """Trains a trial's point and returns its best measurement. Then deletes the run's folder."""
        values = {name: trial.suggest_categorical(name, list(earlier)) for name, earlier in self.space.items()}
        run = self.make_run(values)
        try:
            earlier = next((other for other in list_ended(trial.study) if other.params == trial.params), None)
            value = self._measure(trial, run) if earlier is None else _repeat(trial, earlier)
        except KeyboardInterrupt:
            trial.set_user_attr(STOPPED, True)
            raise
        except Exception as error:
            if not isinstance(error, optuna.TrialPruned):
                trial.set_user_attr(ERROR, format_error(error))
            shutil.rmtree(self.folder / run.digest, ignore_errors=True)
            raise
        shutil.rmtree(self.folder / run.digest, ignore_errors=True)
        return value

    def _measure(self, trial: optuna.Trial, run: Run) -> float:
        killed = [other for other in _list_interrupted(trial.study) if STOPPED not in other.user_attrs]
        times = sum(other.params == trial.params for other in killed)
        if times >= MOST_KILLED:
            raise UserError(f"its process was killed {times} times")
        best = 0.0

        def watch(row: dict[str, float]) -> None:
            nonlocal best
            best = max(best, row[NDCG])
            trial.report(best, int(row["step"]))
            if trial.should_prune():
                raise optuna.TrialPruned

        self.train(run, watch)
        return best

    def train(self, run: Run, watch: Callable[[dict[str, float]], None]) -> None:
        """Trains or resumes a point. `watch` is called with every measurement."""
        import keras

        from bert4rec_tf.runs import driver

        keras.backend.clear_session()
        folders = {"workdir": self.folder / run.digest, "prepared_dir": self.folder / "prepared"}
        driver.open_experiment(run, self.sequences, **folders, silent=True, watch=watch).train()

    def _report(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        last = trial.last_step
        outcome = trial.user_attrs.get(ERROR) or f"NDCG@10 {trial.intermediate_values[last]:.4f} at step {last:,}"
        state, spent = trial.state.name.lower(), format_clock(trial.duration.total_seconds())
        title = f"{self.model} on {self.dataset}, trial {trial.number}"
        print(f"{title}: {state}, {outcome}, {spent}: {trial.params}", flush=True)

    def format_preset(self, study: optuna.Study) -> str:
        """Returns the best settings as an entry of `bert4rec_tf/config/presets`, and as a command.

        Both give the run that was measured, except for PROTOCOL and, with a budget, for the number of steps, which is
        the preset's. If the preset's number of steps was selected for its own settings, it is selected again.
        """
        start, changed = self._find_preset(), self._find_changes(study.best_trial.params)
        flags = " ".join(f"--{setting}={value}" for setting, value in changed.items())
        share = "" if self.plan.budget == 1 else f", with {100 * self.plan.budget:.3g} % of the steps"
        seconds = sum(trial.duration.total_seconds() for trial in study.trials if trial.duration)
        entry = presets.Preset(
            start.name,
            self.dataset,
            self.model,
            f"NDCG@10 {study.best_value:.4f} on the validation item (measured{share}); the test item is not measured.",
            f"Not measured yet; the search of {len(list_ended(study))} trials took {format_clock(seconds)}.",
            {**start.settings, **start.search, **changed},
        )
        text = pprint.pformat(entry, width=110, sort_dicts=False)
        return f"# An entry for bert4rec_tf/config/presets:\n{text},\n# Or by flags:\n{start.command} {flags}"

    def _find_preset(self) -> presets.Preset:
        return presets.find_preset(self.plan.preset if self.is_masked else "fast", self.dataset, self.model)

    def _find_changes(self, values: dict[str, Any]) -> dict[str, Any]:
        """Returns a point's settings, and the other settings in which its run differs from the preset."""
        flat = self.make_run(values).flatten()
        changes = {name: flat[name] for name in (*values, *(["max_predictions"] if self.is_masked else []))}
        start = self._find_preset()
        if start.search:  # steps that were selected before are not those of these settings
            changes["protocol"] = SELECT_AND_RETRAIN
        from_preset = presets.make_run(self.dataset, self.model, start.name, self.plan.seeds[0], **changes).flatten()
        left_out = {*PROTOCOL, *(SHORTENED if self.plan.budget != 1 else ())}
        others = {
            name: value for name, value in flat.items() if name not in left_out and value != from_preset.get(name)
        }
        return {**changes, **others}


def queue_interrupted(study: optuna.Study) -> None:
    """Queues each stopped or killed trial again, once."""
    for trial in study.get_trials(states=[States.RUNNING]):  # of dead processes
        study.tell(trial.number, state=States.FAIL)
    retried = {trial.user_attrs.get(RETRY_OF) for trial in study.trials}
    for trial in _list_interrupted(study):
        if trial.number not in retried:
            study.enqueue_trial(trial.params, user_attrs={RETRY_OF: trial.number})


def _list_interrupted(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    return [trial for trial in study.get_trials(states=[States.FAIL]) if ERROR not in trial.user_attrs]


def list_ended(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    """Returns the trials that completed, were pruned or failed by themselves, but not those stopped or killed."""
    states = (States.COMPLETE, States.PRUNED)
    return [trial for trial in study.trials if trial.state in states or ERROR in trial.user_attrs]


def _repeat(trial: optuna.Trial, earlier: optuna.trial.FrozenTrial) -> float:
    """Ends a trial as the earlier trial of the same point, `earlier`, ended."""
    if ERROR in earlier.user_attrs:
        raise UserError(earlier.user_attrs[ERROR])
    trial.report(earlier.intermediate_values[earlier.last_step], earlier.last_step)
    if earlier.state == States.PRUNED:
        raise optuna.TrialPruned
    return earlier.value


def main(
    models: Sequence[str], plan: Plan, folder: Path, trials: int, data_dir: Path | None, threads: int | None
) -> int:
    """Searches for each model on each data set and prints the best settings. Returns 1 if one completes no trial."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for model in models:
        find_space(model)
    import_tensorflow()
    if threads is not None:
        from bert4rec_tf.runs.environment import set_threads

        set_threads(threads)
    failed = 0
    for dataset in plan.datasets:
        for model in models:
            search = Search(model, dataset, plan, folder / f"{dataset}-{model}", data_dir)
            study = search.resume(trials)
            if study.get_trials(states=[States.COMPLETE]):
                print(search.format_preset(study), flush=True)
            else:
                print(f"{model} on {dataset}: no trial was completed", flush=True)
                failed = 1
    return failed
