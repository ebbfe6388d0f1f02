"""One run with its data and its folder: prepare, train, evaluate."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.config.execution import ExecutionSettings
from bert4rec_tf.config.model_settings import samples_items
from bert4rec_tf.config.run_record import SELECT, Run
from bert4rec_tf.config.transition_settings import ItemTransitionsSettings
from bert4rec_tf.data.examples import in_memory, preparation
from bert4rec_tf.data.examples.masked import MaskedExamples, StoredExamples
from bert4rec_tf.data.examples.rows import Examples, Feed
from bert4rec_tf.data.feature_values import select_features
from bert4rec_tf.data.sequences import LeaveOneOut, Sequences
from bert4rec_tf.evaluation import candidates
from bert4rec_tf.evaluation.evidence_search import search_settings
from bert4rec_tf.evaluation.metrics import FULL, NDCG, POPULAR, compute_metrics, needs_seen_items
from bert4rec_tf.evaluation.mix_search import MixSearch
from bert4rec_tf.evaluation.ranking import Ranker
from bert4rec_tf.evaluation.ranking_task import RankingTask
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.models import MODELS, Recommender
from bert4rec_tf.runs import measurement, phases, warm_start
from bert4rec_tf.runs.environment import describe_environment
from bert4rec_tf.runs.id_texts import check_types
from bert4rec_tf.runs.warm_start import StartWeights
from bert4rec_tf.runs.workdir import RawIds, WorkDirectory
from bert4rec_tf.training import loop, workers
from bert4rec_tf.training.workers import make_strategy

MASKED = "masked"
"""The kind of examples that static masks prepare on disk. All others are made in memory."""

VALIDATION_USERS = 10_000
"""The most users who are measured during training if targets are ranked among all items. They are always the same."""


class _Trained(NamedTuple):
    """A trained model, and its best step on the validation items; 0 without validation."""

    model: Recommender
    best_step: int = 0


@dataclass
class Experiment:
    """A run with its data and its folder. Each step can be called by itself.

    Attributes:
        run, sequences, workdir: the settings, the data and the folder of the run.
        silent: whether to show no progress.
        execution: how trainings compute, and how often they save a checkpoint.
        watch: called with each row of a training's curve (`training.loop.Watch.report`).
        interactions: the user's own files, recorded so that `--mode=evaluate` finds them again.
        start: the weights of a warm start, which a training that has not begun needs; None for a fresh start.
        plan: the record of a budget of time (`budget.Plan`), with `max_seconds` of training; None without one.
        known_transitions: how transitions are counted (`WorkDirectory.write_transitions`); empty to search it.
    """

    run: Run
    sequences: Sequences
    workdir: WorkDirectory
    silent: bool = False
    execution: ExecutionSettings = field(default_factory=ExecutionSettings)
    interactions: Interactions | None = None
    watch: Callable[[dict[str, float]], None] | None = None
    start: StartWeights | None = None
    team: workers.Team = field(default_factory=workers.current_team)
    plan: dict[str, float] | None = None
    known_transitions: dict[str, Any] = field(default_factory=dict)
    split: LeaveOneOut = field(init=False)
    _prepared: dict[str, StoredExamples] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.split = LeaveOneOut(self.sequences)
        sizes = self.sequences.num_items, self.sequences.num_users
        select_features(self.run.architecture, self.sequences.features, *sizes)  # before the folder is made
        self._read_fixed_mix()
        if reason := self._why_untrainable():
            raise UserError(f"{reason}. Received: dataset={self.run.dataset}")
        initial = self._check_start()
        counts = phases.select_training_data(self.split, phases.list_phases(self.run)[-1]).count_items()[1:]
        users = self.sequences.users.tolist() if phases.needs_users(self.run) else []
        self.workdir.initialize(
            self.run,
            self.sequences,
            RawIds(self.sequences.vocabulary, counts, users),
            describe_environment(),
            initial=initial,
            repeats=self.repeats,
            columns=check_types(self.sequences) or None,
            plan=self.plan,
            interactions=None if self.interactions is None else self.interactions.to_dict(),
        )

    def _why_untrainable(self) -> str | None:
        """Returns why the data cannot be used for training or evaluation; None if they can."""
        if reason := self.split.why_unmeasurable():
            return reason
        longest = phases.select_training_data(self.split, phases.list_phases(self.run)[0]).lengths.max(initial=0)
        if MODELS[self.run.model].examples is not None and longest < 2:
            return "No user has two items to train on, so no item can be predicted from another"
        return None

    def _check_start(self) -> dict[str, Any] | None:
        """Returns the record of the warm start; None for a fresh start. Raises UserError if the weights do not fit."""
        if self.start is not None:
            self.start.check(self.run)
            return self.start.record(self.run, self.sequences)
        if self.run.initial_weights is not None and not self.workdir.config.exists():
            raise self._missing_start_error()
        return None

    def _missing_start_error(self) -> UserError:
        return UserError(f"{self.workdir.path}: name the weights to start from with --init_from")

    @property
    def initial(self) -> dict[str, Any] | None:
        """The record of the warm start (`StartWeights.record`); None for a fresh start."""
        return self.workdir.read_config().initial

    @cached_property
    def repeats(self) -> dict[str, float]:
        """The share of the "validation" targets that are in their user's history."""
        return {"validation": float(RankingTask.from_split(self.split, "validation", {}).is_repeat.mean())}

    def prepare(self) -> None:
        """Writes the training examples of all phases and draws the candidates, unless that is done."""
        with self.workdir.lock():
            if self._has_static_masks:
                for phase in phases.list_phases(self.run):
                    self._prepare_examples(phase)
            _ = self.negatives
            _ = self.transitions

    @cached_property
    def transitions(self) -> ItemTransitionsSettings:
        """How transitions are counted: by the run's own settings, and else as is best on the validation items."""
        with self.workdir.lock():
            record = self.workdir.read_transitions()
            if not record:
                record = self.known_transitions or self._search_transitions()
                self.workdir.write_transitions(record)
            if not (self.silent or self.known_transitions):
                print(
                    f"Counting transitions (item_transitions): NDCG@10 {record[NDCG]:.4f} among all unseen items, "
                    "on the validation items",
                    flush=True,
                )
            return ItemTransitionsSettings(**record["settings"])

    def _search_transitions(self) -> dict[str, Any]:
        architecture = self.run.architecture
        settings = architecture if isinstance(architecture, ItemTransitionsSettings) else ItemTransitionsSettings()
        best, ndcg = search_settings(self.split, settings)
        return {"settings": best.record(), NDCG: ndcg}

    def train(self) -> Recommender:
        """Runs or resumes the trainings and returns the model to measure (`find_measured_phase`).

        Raises UserError if the loss or the gradient norm is NaN or infinite, or a file of the training is damaged.
        """
        with self.workdir.lock():
            selected, strategy = None, make_strategy(self.run.training.replicas)
            for phase in phases.list_phases(self.run):
                trained = self._run_phase(phase, selected, strategy)
                if phase == SELECT:
                    selected = trained
                if phase == phases.find_measured_phase(self.run):
                    measured = trained.model
            return measured

    def new_model(self, strategy: tf.distribute.Strategy | None = None) -> Recommender:
        sizes = self.sequences.num_items, self.sequences.num_users
        return phases.make_model(self.run, *sizes, strategy, self.sequences.features)

    def _run_phase(
        self, phase: str, selected: "_Trained | None", strategy: tf.distribute.Strategy | None
    ) -> "_Trained":
        model = self.new_model(strategy)
        model.adapt(phases.select_training_data(self.split, phase), self.transitions)
        if self.run.uses_evidence:
            mix = selected.model.evidence.mix.numpy() if selected else self._read_fixed_mix()
            if mix is not None:
                model.evidence.mix.assign(mix)
        if model.examples is None:
            loop.save_counted_model(model, self.workdir.path / phase)
            return _Trained(model)
        folder, settings, watch = self.workdir.path / phase, *self._make_loop_settings(phase, selected)
        if not loop.has_begun(folder):
            self._set_first_weights(model, phase, selected)
        validate = self.make_validation(model) if phase == SELECT else None
        try:
            state = loop.train(model, self.make_feed(phase, model), settings, folder, validate, watch)
            return _Trained(model, state.best_step)
        except (tf.errors.DataLossError, tf.errors.NotFoundError, tf.errors.FailedPreconditionError) as error:
            raise UserError(
                f"{self.workdir.prepared}: examples were damaged while they were read; run the same command again "
                f"to rewrite them ({error.message})"
            ) from error

    def load_trained_model(self, phase: str | None = None) -> Recommender:
        """Returns the model of a training, by default the one to measure. Raises UserError if it has not finished."""
        sizes = self.sequences.num_items, self.sequences.num_users
        return phases.load_trained(self.run, *sizes, self.workdir, phase or phases.find_measured_phase(self.run))

    def evaluate(self, model: Recommender) -> dict[str, Any]:
        """Evaluates a model on the test items. Writes the ranks and `metrics.json`, and returns the latter."""
        with self.workdir.lock():
            return measurement.measure(self, model)

    @cached_property
    def negatives(self) -> dict[str, np.ndarray]:
        """The frozen candidates of each sampled protocol, [evaluated users, c], of a short integer type."""
        settings = self.run.evaluation
        drawn = candidates.load_or_draw(
            self.workdir.prepared, self.sequences, self.split.users, settings.num_negatives, settings.candidates_seed
        )
        return {name: items.astype(np.min_scalar_type(-self.sequences.num_items)) for name, items in drawn.items()}

    def make_task(self, part: str, all_items: bool = False) -> RankingTask:
        """Returns the ranking task of "validation" or "test": among popular candidates, or by all protocols."""
        negatives = self.negatives if all_items else {POPULAR: self.negatives[POPULAR]}
        return RankingTask.from_split(self.split, part, negatives, all_items, with_seen=needs_seen_items(self.repeats))

    def make_feed(self, phase: str, model: Recommender) -> Feed:
        """Returns the training batches of a phase."""
        data = phases.select_training_data(self.split, phase)
        if self._has_static_masks:
            examples: Examples = self._prepare_examples(phase)
        elif model.examples == MASKED:
            examples = MaskedExamples(data, model.max_length, self.run.masking)
        else:
            examples = in_memory.KINDS[model.examples](data, **model.example_options)
        return Feed(examples, self.run.training.batch_size, self.run.seed, samples_items(self.run.architecture))

    @property
    def _has_static_masks(self) -> bool:
        return MODELS[self.run.model].examples == MASKED and self.run.masking.masking == "static"

    def _prepare_examples(self, phase: str) -> StoredExamples:
        if phase not in self._prepared:
            self._prepared[phase] = preparation.prepare_examples(
                phases.select_training_data(self.split, phase),
                self.run.masking,
                self.run.architecture.max_length,
                self.run.seed,
                self.workdir.prepared,
            )
        return self._prepared[phase]

    def _make_loop_settings(self, phase: str, selected: "_Trained | None") -> tuple[loop.LoopSettings, loop.Watch]:
        is_last = phase == phases.list_phases(self.run)[-1]
        settings = self.run.training
        if selected and settings.final_share:
            settings = phases.shorten_final(settings, selected.best_step)
        elif selected:
            settings = replace(settings, stop_after=selected.best_step)
        max_seconds = None if selected else (self.workdir.read_config().plan or {}).get("max_seconds")
        later_steps = 0 if is_last else int(settings.steps * (settings.final_share or 1))
        title = "final training" if selected else "training"
        watch = loop.Watch(title, self.silent, later_steps, self.watch)
        return loop.LoopSettings(settings, self.execution, max_seconds), watch

    def _read_fixed_mix(self) -> tuple[float, float, float] | None:
        """Returns the given `TransitionEvidence.mix`; None if it is chosen in `select`.

        Raises UserError if only a part is given, or nothing and there is no `select`.
        """
        if not self.run.uses_evidence:
            return None
        settings = self.run.architecture
        mix = settings.evidence_gain, settings.evidence_popularity
        if None not in mix:
            return *mix, 1 / settings.evidence_temperature
        if mix != (None, None) or settings.evidence_temperature != 1.0:
            raise UserError(
                "`evidence_gain` and `evidence_popularity` must be given together, and with `evidence_temperature`. "
                f"Received: evidence_gain={mix[0]}, evidence_popularity={mix[1]}"
            )
        if SELECT not in phases.list_phases(self.run):
            raise UserError(
                "`evidence_gain` and `evidence_popularity` must be given with protocol=fixed, which has no validation "
                f"items to choose them. Received: evidence_gain={mix[0]}, evidence_popularity={mix[1]}"
            )
        return None

    def _set_first_weights(self, model: Recommender, phase: str, selected: "_Trained | None") -> None:
        if selected and self.run.training.final_share:
            warm_start.copy_weights(selected.model, model)
        elif self.run.initial_weights is None:
            model.initialise(phases.select_training_data(self.split, phase))
        elif self.start is None:
            raise self._missing_start_error()
        else:
            self.start.apply_to(model, self.sequences.vocabulary.items.tolist(), self.sequences.users.tolist())

    def make_validation(self, model: Recommender) -> Callable[[], dict[str, float]]:
        """Returns what measures the model on the validation items, and first chooses how evidence joins its scores."""
        protocol, team, share = self.run.training.selection_metric, self.team, (self.team.index, self.team.count)
        among_all = RankingTask.from_split(self.split, "validation", {}, all_items=True).sample(VALIDATION_USERS)
        task = among_all if protocol == FULL else self.make_task("validation")
        ranker = Ranker(model)
        is_chosen = self.run.uses_evidence and self._read_fixed_mix() is None
        search = MixSearch(model, among_all, self.transitions) if is_chosen else None

        def measure() -> dict[str, float]:
            ranks = None if search is None else search.choose()
            if ranks is None or protocol != FULL:
                ranks = team.sum(ranker.rank(task, share=share)[protocol])
            return compute_metrics(ranks)

        return measure
