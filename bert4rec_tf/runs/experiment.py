"""One run, in the order of the work: open a folder with data, prepare, train.

`measuring` evaluates the trained model, and `exporting` turns the folder of a finished run into a model to serve.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert4rec_tf.config.data_names import Interactions, is_own
from bert4rec_tf.config.execution import ExecutionSettings
from bert4rec_tf.config.model_settings import MASKED_MODELS, samples_items
from bert4rec_tf.config.run_record import ALL, RETRAIN, SELECT, Run
from bert4rec_tf.config.time_budget import Budget
from bert4rec_tf.config.transition_settings import ItemTransitionsSettings
from bert4rec_tf.data.examples import preparation
from bert4rec_tf.data.examples.joined import JoinedFeed, make_model_feed
from bert4rec_tf.data.examples.kinds import MASKED, make_examples
from bert4rec_tf.data.examples.masked import StoredExamples
from bert4rec_tf.data.examples.rows import Examples, Feed
from bert4rec_tf.data.feature_values import select_features
from bert4rec_tf.data.id_types import drop_wrong_types
from bert4rec_tf.data.sequences import LeaveOneOut, Sequences
from bert4rec_tf.evaluation import candidates, metrics
from bert4rec_tf.evaluation.evidence_search import search_settings
from bert4rec_tf.evaluation.metrics import ANY, FULL, NDCG, POPULAR
from bert4rec_tf.evaluation.mix_search import MixSearch
from bert4rec_tf.evaluation.ranking import Ranker
from bert4rec_tf.evaluation.ranking_task import RankingTask
from bert4rec_tf.foundation.environment import describe_environment
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.processes import claim_tensorflow
from bert4rec_tf.models import MODELS, Recommender
from bert4rec_tf.runs import measuring, warm_start
from bert4rec_tf.runs.folder import RawIds, WorkDirectory
from bert4rec_tf.runs.planning import Planner
from bert4rec_tf.runs.trainings import (
    compute_final_share,
    list_trainings,
    load_model,
    make_final_settings,
    make_model,
    needs_users,
    scale_steps,
)
from bert4rec_tf.runs.warm_start import StartWeights
from bert4rec_tf.training import loop, workers

VALIDATION_USERS = 10_000
"""The most users who are measured during training if targets are ranked among all items. They are always the same."""


@dataclass(frozen=True)
class Result:
    """The result of a run.

    Attributes:
        metrics: the content of `metrics.json`: settings, validation and test metrics, baselines.
        model: the model that was evaluated on the test items.
        sequences: the data, with the vocabulary of the model's ids.
        workdir: the folder of the run.
    """

    metrics: dict[str, Any]
    model: Recommender
    sequences: Sequences
    workdir: Path


def execute(run: Run, sequences: Sequences, **options: Any) -> Result:
    """Prepares, trains and evaluates a run. Skips what is already prepared and trained.

    Sets TensorFlow's global seed to the run's, and leaves the generators of Python and NumPy as they were.

    Args:
        run: the settings.
        sequences: the data (`b4r.load`).
        **options: as for `open_experiment`.
    """
    return run_mode(open_experiment(run, sequences, **options))


def run_mode(experiment: Experiment, mode: str = "all") -> Result:
    """Prepares, trains and evaluates, or does the one of these that `mode` names.

    What is already prepared or trained is skipped. The result of `prepare` and `train` has no metrics, and neither has
    that of a machine which only helps to train.
    """
    content: dict[str, Any] = {}
    model: Any = None
    with experiment.workdir.lock():
        if mode in ("all", "train"):
            workers.make_strategy(experiment.run.training.replicas)  # reports too few devices before a long preparation
        if mode in ("all", "prepare"):
            experiment.prepare()
        if mode in ("all", "train"):
            model = experiment.train()
        if not experiment.workdir.is_read_only and mode in ("all", "evaluate"):
            model = model or experiment.load_trained_model()
            content = experiment.evaluate(model)
    return Result(content, model, experiment.sequences, experiment.workdir.path)


def open_experiment(
    run: Run,
    sequences: Sequences,
    workdir: Path | str | None = None,
    prepared_dir: Path | str | None = None,
    init_from: Path | str | StartWeights | None = None,
    budget: Budget | None = None,
    interactions: Interactions | None = None,
    **options: Any,
) -> Experiment:
    """Opens the folder of a run: a new one, or one that holds this run on these data.

    If several machines train together (`workers.join_team`), the chief opens and prepares first.

    Args:
        run: the settings.
        sequences: the data.
        workdir: the run's folder; None for `runs/<dataset>-<model>-<digest>`.
        prepared_dir: the folder of training examples and candidates; None for `prepared` in the run's folder.
        init_from: trained weights to start from, or their path (`warm_start.read_start_weights`); None for a fresh
            start.
        budget: the time to plan the run for, when its first training begins; None to train as the settings say.
        interactions: the user's own files, recorded so that `--mode=evaluate` finds them again.
        **options: `silent`, `execution` and `watch` of `Experiment`.

    Raises UserError if the run does not suit the data, the weights do not fit, or the folder holds another run.
    """
    if budget is not None:
        budget.check(run.model, **run.flatten())
    claim_tensorflow()
    start = None
    if init_from is not None:
        run, start = warm_start.resolve_initial(run, init_from)
    folder, team = WorkDirectory.from_run(run, workdir, prepared_dir, budget), workers.current_team()
    folder.is_read_only = not team.is_chief
    team.agree({"data": sequences.fingerprint})
    with team.run_chief_first():
        experiment = Experiment(folder.read_planned(run, budget), LeaveOneOut(sequences), folder, start, **options)
        experiment.check()
        experiment.begin(interactions, budget)
        experiment.budget = budget if folder.can_be_planned() else None
        if team.count > 1:
            experiment.prepare()
    return experiment


class _Outcome(NamedTuple):
    """A trained model, and its best step on the validation items; 0 without validation."""

    model: Recommender
    best_step: int = 0


@dataclass(eq=False)
class Experiment:
    """A run with its data and its folder. `open_experiment` makes it.

    Attributes:
        run: the settings. A budget of time plans some of them when the first training begins.
        split: the data, and which items are held out.
        workdir: the folder.
        start: the weights of a warm start, which a training that has not begun needs; None for a fresh start.
        budget: the time that the run is to be planned for; None without one, or if that is done.
        silent: whether to show no progress.
        execution: how trainings compute, and how often they save a checkpoint.
        watch: called with each row of a training's curve (`training.loop.Watch.report`).
    """

    run: Run
    split: LeaveOneOut
    workdir: WorkDirectory
    start: StartWeights | None = None
    budget: Budget | None = None
    silent: bool = False
    execution: ExecutionSettings = field(default_factory=ExecutionSettings)
    watch: Callable[[dict[str, float]], None] | None = None
    _stored_examples: dict[tuple[str, int], StoredExamples] = field(init=False, default_factory=dict)

    @property
    def sequences(self) -> Sequences:
        return self.split.sequences

    @cached_property
    def trainings(self) -> list[str]:
        """The names of the trainings, in order."""
        return list_trainings(self.run)

    @property
    def measured_training(self) -> str:
        """The training whose model is measured: the last one that holds out the test items."""
        return [training for training in self.trainings if training != ALL][-1]

    def select_data(self, training: str) -> Sequences:
        """Returns what a training learns from."""
        return self.sequences if training == ALL else self.split.training(with_validation=training == RETRAIN)

    # Open

    def check(self) -> None:
        """Raises UserError if the data do not suit the run, or the weights to start from do not fit."""
        select_features(
            self.run.architecture, self.sequences.features, self.sequences.num_items, self.sequences.num_users
        )
        reason = self.split.why_unmeasurable()
        is_trained = MODELS[self.run.model].examples is not None
        if not reason and is_trained and self.select_data(self.trainings[0]).lengths.max(initial=0) < 2:
            reason = "No user has two items to train on, so no item can be predicted from another"
        if reason:
            raise UserError(reason if is_own(self.run.dataset) else f"{reason}. Received: dataset={self.run.dataset}")
        if self.start is not None:
            self.start.check(self.run)
        elif self.run.initial_weights is not None and not self.workdir.config.exists():
            raise self._missing_start_error()

    def _missing_start_error(self) -> UserError:
        return UserError(f"{self.workdir.path}: name the weights to start from with --init_from")

    def begin(self, interactions: Interactions | None, budget: Budget | None) -> None:
        """Writes the record of the run and the ids into the folder, or checks those that are there."""
        counts = self.select_data(self.trainings[-1]).count_items()[1:]
        users = self.sequences.users.tolist() if needs_users(self.run) else []
        self.workdir.initialize(
            self.run,
            self.sequences,
            RawIds(self.sequences.vocabulary, counts, users),
            describe_environment(),
            initial=None if self.start is None else self.start.record(self.run, self.sequences),
            repeats=self.repeats,
            columns=drop_wrong_types(self.sequences) or None,
            plan=None if budget is None else budget.record(),
            interactions=None if interactions is None else interactions.to_dict(),
        )

    @cached_property
    def repeats(self) -> dict[str, float]:
        """The share of the "validation" targets that are in their user's history."""
        return {"validation": float(RankingTask.from_split(self.split, "validation", {}).is_repeat.mean())}

    # Prepare

    def prepare(self) -> None:
        """Writes the training examples and draws the candidates, and chooses how to count, unless that is done."""
        with self.workdir.lock():
            for training in self.trainings if self._has_static_masks else ():
                self._prepare_examples(training)
            _ = self.negatives
            _ = self.transitions

    @property
    def _has_static_masks(self) -> bool:
        return self.run.model in MASKED_MODELS and self.run.masking.masking == "static"

    def _prepare_examples(self, training: str) -> StoredExamples:
        max_length = self.run.architecture.max_length
        if (training, max_length) not in self._stored_examples:
            data, folder = self.select_data(training), self.workdir.prepared
            examples = preparation.prepare_examples(data, self.run.masking, max_length, self.run.seed, folder)
            self._stored_examples[training, max_length] = examples
        return self._stored_examples[training, max_length]

    @cached_property
    def negatives(self) -> dict[str, np.ndarray]:
        """The frozen candidates of each sampled protocol, [evaluated users, c], of a short integer type."""
        settings = self.run.evaluation
        arrays = candidates.load_or_draw(
            self.workdir.prepared, self.sequences, self.split.users, settings.num_negatives, settings.candidates_seed
        )
        return {name: items.astype(np.min_scalar_type(-self.sequences.num_items - 1)) for name, items in arrays.items()}

    @cached_property
    def transitions(self) -> ItemTransitionsSettings:
        """How transitions are counted: by the run's own settings, and else as is best on the validation items."""
        with self.workdir.lock():
            record = self.workdir.read_transitions()
            if not record:
                group = self.run.architecture
                settings = group if isinstance(group, ItemTransitionsSettings) else ItemTransitionsSettings()
                best, ndcg = search_settings(self.split, settings)
                record = {"settings": best.record(), NDCG: ndcg}
                self.workdir.write_transitions(record)
            self._say(
                f"Counting transitions (item_transitions): NDCG@10 {record[NDCG]:.4f} among all unseen items, on the "
                "validation items"
            )
            return ItemTransitionsSettings(**record["settings"])

    def _say(self, line: str) -> None:
        if not self.silent:
            print(line, flush=True)

    # Train

    def train(self) -> Recommender:
        """Runs or resumes the trainings and returns the model to measure.

        Raises UserError if the loss or the gradient norm is NaN or infinite, a file of the training is damaged, or a
        budget of time is too short.
        """
        with self.workdir.lock():
            strategy = workers.make_strategy(self.run.training.replicas)
            outcomes: dict[str, _Outcome] = {}
            for name in self.trainings:
                model = self._new_model(name, strategy)
                if model.examples is None:
                    loop.save_counted_model(model, self.workdir.path / name)
                    outcomes[name] = _Outcome(model)
                    continue
                training = self._open_training(name, model, outcomes.get(SELECT))
                if self.budget is not None:
                    training = self._plan(training, self.budget)
                try:
                    outcomes[name] = _Outcome(training.model, training.run().best_step)
                except (tf.errors.DataLossError, tf.errors.NotFoundError, tf.errors.FailedPreconditionError) as error:
                    raise UserError(
                        f"{self.workdir.prepared}: examples were damaged while they were read; run the same command "
                        f"again to rewrite them ({error.message})"
                    ) from error
            return outcomes[self.measured_training].model

    def _new_model(self, name: str, strategy: tf.distribute.Strategy | None = None) -> Recommender:
        """Returns the model of a training, with new weights, and with what it counts."""
        sizes = self.sequences.num_items, self.sequences.num_users
        model = make_model(self.run, *sizes, strategy, self.sequences.features)
        model.adapt(self.select_data(name), self.transitions)
        return model

    def _open_training(self, name: str, model: Recommender, selection: _Outcome | None) -> loop.Training:
        """Returns a training to run or to resume. `selection`: the result of SELECT, if it came before."""
        folder = self.workdir.path / name
        if not loop.has_begun(folder):
            self._set_first_weights(model, name, selection)
        if self.run.uses_evidence:
            if selection:
                model.set_mix(selection.model.evidence.mix, selection.model.get_network_share())
            elif self.run.given_mix is not None:
                model.set_mix(self.run.given_mix, model.get_network_share())
        validate = self.make_validation(model) if name == SELECT else None
        settings, max_seconds = self.run.training, (self.workdir.read_config().plan or {}).get("max_seconds")
        if selection:
            share, max_seconds = self._compute_final_share(name), None
            settings = make_final_settings(settings, selection.best_step, share)
        title = "final training" if selection else "training"
        watch = loop.Watch(title, self.silent, self._count_later_steps(name), self.watch)
        feed = self.make_feed(name, model)
        return loop.Training(model, feed, settings, folder, validate, watch, self.execution, max_seconds)

    def _count_later_steps(self, name: str) -> int:
        """Returns the steps of the trainings after one."""
        last_name = self.trainings[-1]
        return 0 if name == last_name else scale_steps(self.run.training.steps, self._compute_final_share(last_name))

    def _set_first_weights(self, model: Recommender, name: str, selection: _Outcome | None) -> None:
        if selection and self.run.training.final_share:
            warm_start.copy_weights(selection.model, model)
        elif self.run.initial_weights is None:
            model.initialise(self.select_data(name))
        elif self.start is None:
            raise self._missing_start_error()
        else:
            self.start.apply_to(model, self.sequences.vocabulary.items.tolist(), self.sequences.users.tolist())
            named_share = self.run.flatten().get("network_share")
            if named_share is not None:
                model.network_share.assign(named_share)  # in place of that of the weights

    def _compute_growth(self, name: str) -> float:
        """Returns how many times the actions of SELECT a training after it learns from."""
        return self.select_data(name).num_actions / self.select_data(SELECT).num_actions

    def _compute_final_share(self, name: str) -> float:
        return compute_final_share(self.run.training, self._compute_growth(name))

    def make_feed(self, name: str, model: Recommender) -> Feed | JoinedFeed:
        """Returns the training batches of a training."""
        return make_model_feed(model, self.run.training.batch_size, functools.partial(self._make_feed, name))

    def _make_feed(self, name: str, model: Recommender, batch_size: int) -> Feed:
        if model.examples == MASKED and self._has_static_masks:
            examples: Examples = self._prepare_examples(name)
        else:
            examples = make_examples(model, self.select_data(name), self.run.masking)
        return Feed(examples, batch_size, self.run.seed, samples_items(self.run.architecture))

    def make_validation(self, model: Recommender) -> Callable[[], dict[str, float]]:
        """Returns what measures the model on the validation items, and first chooses how evidence joins its scores."""
        ranked_among, team = self.run.training.selection_metric, workers.current_team()
        selection_task = self.make_selection_task()
        task = selection_task if ranked_among == FULL else self.make_task("validation")
        is_chosen = self.run.uses_evidence and self.run.given_mix is None
        search = MixSearch(model, selection_task, self.transitions) if is_chosen else None
        ranker = None if search is not None and ranked_among == FULL else Ranker(model)

        def measure() -> dict[str, float]:
            ranks = np.empty(0, np.int64) if search is None else search.choose()
            if ranker is not None:
                ranks = team.sum(ranker.rank(task, share=(team.index, team.count))[ranked_among])
            return metrics.compute_metrics(ranks)

        return measure

    def make_selection_task(self) -> RankingTask:
        """Returns the validation items of the users who are measured during training, among all items."""
        return RankingTask.from_split(self.split, "validation", {}, all_items=True).sample(VALIDATION_USERS)

    def _plan(self, training: loop.Training, budget: Budget) -> loop.Training:
        """Plans the run by the first calls of its first training. Returns what to run, maybe a smaller model.

        Raises UserError if the budget is too short.
        """
        planner = Planner(self.run, budget, [self._compute_growth(name) for name in self.trainings[1:]])
        planner.measure(training)
        if planner.shrink():
            self.run = planner.run
            training = self._open_training(SELECT, self._new_model(SELECT), None)
            planner.measure(training)
        self.run, self.budget = planner.choose_steps(), None
        plan = planner.record()
        self.workdir.write_plan(self.run, plan)
        self._say(planner.describe())
        training.change_settings(self.run.training, plan["max_seconds"])
        training.watch = replace(training.watch, later_steps=self._count_later_steps(SELECT))
        return training

    # Evaluate

    def load_trained_model(self, training: str | None = None) -> Recommender:
        """Returns the model of a training, by default the one to measure. Raises UserError if it has not finished."""
        return load_model(self.workdir, training or self.measured_training)

    def make_task(self, part: str, all_items: bool = False) -> RankingTask:
        """Returns the ranking task of "validation" or "test": among popular candidates, or by all protocols."""
        negatives = self.negatives if all_items else {POPULAR: self.negatives[POPULAR]}
        with_seen = metrics.find_served_protocol(self.repeats) == ANY
        return RankingTask.from_split(self.split, part, negatives, all_items, with_seen=with_seen)

    def evaluate(self, model: Recommender) -> dict[str, Any]:
        """Measures a model on the test items. Writes the ranks and `metrics.json`, and returns the latter."""
        with self.workdir.lock():
            return measuring.measure(self, model)
