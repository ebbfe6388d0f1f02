"""One run: prepare, train, evaluate. Used by the command line, notebooks and sweeps."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.config.popularity import CHOOSE, CORRECTION, parse
from bert4rec_tf.config.run import ALL, RETRAIN, SELECT, TRAININGS, Run
from bert4rec_tf.config.transition_settings import ItemTransitionsSettings
from bert4rec_tf.data.examples import batches, in_memory, preparation
from bert4rec_tf.data.examples.tfrecords import Shards
from bert4rec_tf.data.features import select_features
from bert4rec_tf.data.sequences import LeaveOneOut, Sequences
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.evaluation import candidates, popularity_penalty
from bert4rec_tf.evaluation.baselines import measure_baselines
from bert4rec_tf.evaluation.evidence_search import MixSearch, search_settings
from bert4rec_tf.evaluation.metrics import (
    COLD,
    COLD_BELOW,
    FULL,
    MIN_USERS,
    NDCG,
    POPULAR,
    compute_cold_metrics,
    compute_difference,
    compute_metrics,
    compute_per_user,
    needs_seen_items,
)
from bert4rec_tf.evaluation.ranker import Ranker, RankingResult, RankingTask
from bert4rec_tf.foundation import files, npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.models import MODELS, Recommender
from bert4rec_tf.models.construction import make_model, needs_users
from bert4rec_tf.runs import warm_start
from bert4rec_tf.runs.environment import environment
from bert4rec_tf.runs.transfer import StartWeights
from bert4rec_tf.runs.workdir import WorkDirectory
from bert4rec_tf.training import trainer, workers
from bert4rec_tf.training.steps import make_strategy

MASKED = "masked"
"""The kind of examples that are prepared on disk. All others are made in memory (`data.examples.in_memory`)."""

VALIDATION_USERS = 10_000
"""If targets are ranked among all items during training, so many users are measured at most, always the same ones."""

TITLES = {SELECT: "selecting steps on validation", RETRAIN: "training", ALL: "training on all actions"}


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


def phases(run: Run) -> list[str]:
    """Returns a run's trainings in order, as its protocol says.

    A model that only counts has nothing to select before a `retrain`.
    """
    trainings = TRAININGS[run.training.protocol]
    if MODELS[run.model].examples is None and RETRAIN in trainings:
        return [RETRAIN]
    return list(trainings)


def measured_phase(run: Run) -> str:
    """Returns the training whose model is measured: the last one that holds out the test items."""
    return [phase for phase in phases(run) if phase != ALL][-1]


def load_trained(run: Run, num_items: int, num_users: int, workdir: WorkDirectory, phase: str) -> Recommender:
    """Returns the model of the finished training `phase`. Raises UserError if it has not finished."""
    model = make_model(run, num_items, num_users, features=workdir.read_features())
    if model.evidence is not None:
        model.evidence.build((workdir.read_num_pairs(phase),))
    trainer.load_weights(model, workdir.phase(phase))
    return model


@dataclass
class Experiment:
    """A run with its data and its folder. Each step can be called by itself.

    Attributes:
        run, sequences, workdir: the settings, the data and the folder of the run.
        processes: number of processes that prepare examples.
        silent: whether to hide the progress.
        checkpoint_seconds: seconds between checkpoints; a killed training loses at most these.
        interactions: the user's own files, recorded so that `--mode=evaluate` finds them again.
        watch: called with each new row of the training curve (`training.trainer.Trainer`). An exception ends the
            training.
        start: the weights of a warm start; None for a fresh start, or if the folder already has them.
        team: the machines that train together (`workers.join_team`).
    """

    run: Run
    sequences: Sequences
    workdir: WorkDirectory
    processes: int = 1
    silent: bool = False
    checkpoint_seconds: float = trainer.CHECKPOINT_SECONDS
    interactions: Interactions | None = None
    watch: Callable[[dict[str, float]], None] | None = None
    start: StartWeights | None = None
    team: workers.Team = field(default_factory=workers.current_team)
    split: LeaveOneOut = field(init=False)
    _prepared: dict[str, Shards] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.split = LeaveOneOut(self.sequences)
        sizes = self.sequences.num_items, self.sequences.num_users
        select_features(self.run.architecture, self.sequences.features, *sizes)  # before the folder is made
        self._given_mix()
        if useless := self._useless():
            raise UserError(f"{useless}. Received: dataset={self.run.dataset}")
        initial = self._checked_start()
        self.workdir.initialize(self.run, self.sequences, environment(), self.interactions, initial, self.repeats)
        if self.start is not None:
            with self.workdir.lock():
                warm_start.keep(self.start, self.workdir)
        self.workdir.keep_training_counts(self.training_counts(phases(self.run)[-1]))
        if needs_users(self.run):
            self.workdir.keep_users(self.sequences.users)

    def _useless(self) -> str | None:
        """Returns why the data cannot be used for training or evaluation; None if they can."""
        if not len(self.split.users):
            by_time = self.sequences.num_later is not None
            wanted = "an action after the split and two before it" if by_time else "three actions"
            return f"No user has {wanted}, so there is nothing to measure on"
        if all(len(np.unique(self.sequences[user])) == self.sequences.num_items for user in self.split.users):
            return "Every user has seen every item, so there are no candidates to rank"
        longest = self.training_part(phases(self.run)[0]).lengths.max(initial=0)
        if MODELS[self.run.model].examples is not None and longest < 2:
            return "No user has two items to train on, so no item can be predicted from another"
        return None

    def _checked_start(self) -> dict[str, Any] | None:
        """Returns the record of the warm start; None for a fresh start. Raises UserError if the weights do not fit."""
        if self.start is not None:
            self.start.check(self.run)
            return self.start.record(self.run, self.sequences)
        if self.run.initial_weights is not None and not self.workdir.config.exists():
            raise UserError(f"{self.workdir.path}: is a new folder; name the weights to start from with --init_from")
        return None

    @property
    def initial(self) -> dict[str, Any] | None:
        """The record of the warm start (`StartWeights.record`); None for a fresh start."""
        return self.workdir.read_config().get("initial")

    @cached_property
    def repeats(self) -> dict[str, float]:
        """The share of the "validation" targets that are in their user's history."""
        return {"validation": float(RankingTask.from_split(self.split, "validation", {}).is_repeat.mean())}

    def training_part(self, phase: str) -> Sequences:
        """Returns what a training learns from."""
        return self.sequences if phase == ALL else self.split.training(with_validation=phase == RETRAIN)

    def training_counts(self, phase: str) -> np.ndarray:
        """Returns how often each item occurs in what a training learns from, int64 [n]."""
        return self.training_part(phase).counts()[1:]

    def prepare(self) -> None:
        """Writes the training examples of all phases and draws the candidates, unless that is done."""
        with self.workdir.lock():
            if MODELS[self.run.model].examples == MASKED:
                for phase in phases(self.run):
                    self._shards(phase)
            _ = self.negatives
            _ = self.transitions

    @cached_property
    def transitions(self) -> ItemTransitionsSettings:
        """How transitions are counted: by the run's own settings, and else as is best on the validation items."""
        with self.workdir.lock():
            record = self.workdir.read_transitions()
            if not record:
                own = self.run.architecture
                settings = own if isinstance(own, ItemTransitionsSettings) else ItemTransitionsSettings()
                found, ndcg = search_settings(self.split, settings)
                record = {"settings": found.record(), NDCG: ndcg, "pairs": {}}
                self.workdir.keep_transitions(record)
            if not self.silent:
                print(
                    f"Counting transitions (item_transitions): NDCG@10 {record[NDCG]:.4f} among all unseen items, "
                    "on the validation items",
                    flush=True,
                )
            return ItemTransitionsSettings(**record["settings"])

    def train(self) -> Recommender:
        """Runs or resumes the trainings and returns the model to measure (`measured_phase`).

        Raises:
            UserError: if the loss or the gradient norm is NaN or infinite, or a file of the training is damaged.
        """
        with self.workdir.lock():
            last_step, mix, strategy = None, self._given_mix(), make_strategy(self.run.training.replicas)
            for phase in phases(self.run):
                model, last_step = self._run_phase(phase, last_step, mix, strategy)
                if self.run.uses_evidence:
                    mix = model.evidence.mix.numpy().tolist()
                if phase == measured_phase(self.run):
                    measured = model
            return measured

    def _new_model(self, strategy: tf.distribute.Strategy | None = None) -> Recommender:
        sizes = self.sequences.num_items, self.sequences.num_users
        return make_model(self.run, *sizes, strategy, self.sequences.features)

    def _run_phase(
        self,
        phase: str,
        last_step: int | None,
        mix: Sequence[float] | None,
        strategy: tf.distribute.Strategy | None,
    ) -> tuple[Recommender, int | None]:
        model = self._new_model(strategy)
        model.adapt(self.training_part(phase), self.transitions)
        if model.evidence is not None:
            record = self.workdir.read_transitions()
            pairs = {**record["pairs"], phase: model.evidence.num_pairs}
            self.workdir.keep_transitions({**record, "pairs": pairs})
        if self.run.uses_evidence and mix is not None:
            model.evidence.mix.assign(mix)
        if model.examples is None:
            trainer.save_counted_model(model, self.workdir.phase(phase))
            return model, None
        try:
            return model, self._trainer(model, phase, last_step, strategy).run().best_step or None
        except (tf.errors.DataLossError, tf.errors.NotFoundError, tf.errors.FailedPreconditionError) as error:
            raise UserError(
                f"{self.workdir.prepared}: examples were damaged while they were read; run the same command again "
                f"to rewrite them ({error.message})"
            ) from error

    def trained_model(self) -> Recommender:
        """Returns the model to measure (`measured_phase`). Raises UserError if its training has not finished."""
        sizes = self.sequences.num_items, self.sequences.num_users
        return load_trained(self.run, *sizes, self.workdir, measured_phase(self.run))

    def evaluate(self, model: Recommender, popularity_correction: float | str = 0.0) -> dict[str, Any]:
        """Evaluates a model on the test items. Writes the ranks and `metrics.json`, and returns the latter.

        Args:
            model: the model to measure.
            popularity_correction: the model is also measured with this alpha (`popularity_penalty`). CHOOSE takes the
                alpha that is best on the validation items.
        """
        alpha = parse(popularity_correction)
        with self.workdir.lock():
            ranked = self._rank(model, title=None if self.silent else "measuring on test")
            correction = self._measure_corrected(model, alpha)
            kept = {f"{protocol}_candidates": found for protocol, found in ranked.num_candidates.items()}
            repeats = {**self.repeats, "test": float(self._test_task.is_repeat.mean())}
            if repeats["test"]:
                kept["is_repeat"] = self._test_task.is_repeat
            npz.write(self.workdir.ranks, {"users": self.split.users, **ranked.ranks, **kept})
            fewer = ranked.num_candidates[POPULAR] < self.run.evaluation.num_negatives
            baselines, counted_ranks = measure_baselines(
                self.run,
                self.split,
                self._test_task,
                ranked.num_candidates,
                self.training_part(measured_phase(self.run)),
                self.transitions,
            )
            content = {
                "run": self.run.to_dict(),
                "digest": self.run.digest,
                "data_fingerprint": self.sequences.fingerprint,
                "environment": self.workdir.read_config()["environment"],
                "evaluated_with": environment(),
                "users": len(self.split.users),
                "users_not_evaluated": self.split.num_not_evaluated,
                "users_with_fewer_candidates": int(fewer.sum()),
                "repeats": repeats,
                "test": ranked.compute_metrics(),
                "measured": measured_phase(self.run),
                **({COLD: self._cold(ranked.ranks[FULL])} if self.sequences.features else {}),
                **({} if self.initial is None else {"initial": self.initial}),
                **correction,
                **baselines,
                "transitions": self.workdir.read_transitions(),
                "beyond_counting": self._compare_with_counting(ranked.ranks[FULL], counted_ranks[FULL]),
                **self._measure_validation(model),
                **self._phase_results(),
            }
            files.write_json(self.workdir.metrics, content)
            return content

    def _compare_with_counting(self, ranks: np.ndarray, counted_ranks: np.ndarray) -> dict[str, float] | None:
        """Returns by how much NDCG@10 among all items exceeds that of counting; None for too few users."""
        if len(ranks) < MIN_USERS:
            return None
        return asdict(compute_difference(compute_per_user(NDCG, counted_ranks), compute_per_user(NDCG, ranks)))

    def _rank(
        self, model: Recommender, correction: tuple[np.ndarray, float] | None = None, title: str | None = None
    ) -> RankingResult:
        """Ranks the test items. `correction`: as for `make_ranker`. `title`: of the progress; None for none."""
        return popularity_penalty.make_ranker(model, correction).rank_and_list(self._test_task, title)

    @cached_property
    def _test_task(self) -> RankingTask:
        return self.task("test", all_items=True)

    def _cold(self, ranks: np.ndarray) -> dict[str, Any]:
        """Returns the metrics of targets that training saw seldom, and of the others. `ranks`: among all items."""
        counts = self.training_part(measured_phase(self.run)).counts()
        return {"below": COLD_BELOW, **compute_cold_metrics(ranks, counts[self.split.targets("test")])}

    def _measure_corrected(self, model: Recommender, alpha: float | str) -> dict[str, Any]:
        """Returns the corrected ranking's entry of `metrics.json`; empty for an alpha of 0."""
        if not alpha:
            return {}
        entry: dict[str, Any] = self._choose_correction(model) if alpha == CHOOSE else {"alpha": alpha}
        counts = popularity_penalty.compute_log_counts(self.training_counts(measured_phase(self.run)))
        ranked = self._rank(model, (counts, entry["alpha"]))
        return {CORRECTION: {**entry, "test": ranked.compute_metrics()}}

    def _choose_correction(self, model: Recommender) -> dict[str, Any]:
        """Returns the alpha that is best on the validation items, and NDCG@10 for each alpha.

        The model is that of `select`. Without `select` it is the final model, which was trained on these items; then
        `trained_on_validation` is True.
        """
        counts_only, has_select = model.examples is None, phases(self.run)[0] == SELECT
        if counts_only or has_select:
            model = self._new_model()
            model.adapt(self.split.training(with_validation=False), self.transitions)
            if has_select:
                trainer.load_weights(model, self.workdir.phase(SELECT))
        is_trained_on = not (counts_only or has_select)
        counts = popularity_penalty.compute_log_counts(self.split.training(with_validation=is_trained_on).counts()[1:])
        curve = popularity_penalty.measure_alphas(
            Ranker(model.score, model.max_history), self.task("validation"), counts
        )
        return {
            "alpha": popularity_penalty.pick_best_alpha(curve),
            "trained_on_validation": is_trained_on,
            "validation": curve,
        }

    @cached_property
    def negatives(self) -> dict[str, np.ndarray]:
        """The frozen candidates of each sampled protocol, int32 [evaluated users, c]."""
        settings = self.run.evaluation
        return candidates.load_or_draw(
            self.workdir.prepared, self.sequences, self.split.users, settings.num_negatives, settings.candidates_seed
        )

    def task(self, part: str, all_items: bool = False) -> RankingTask:
        """Returns the ranking task of "validation" or "test": among popular candidates, or by all protocols."""
        negatives = self.negatives if all_items else {POPULAR: self.negatives[POPULAR]}
        return RankingTask.from_split(self.split, part, negatives, all_items, with_seen=needs_seen_items(self.repeats))

    def batches(self, phase: str, model: Recommender, start_step: int = 0) -> tf.data.Dataset:
        """Returns the endless training batches of a phase, from `start_step` on."""
        if model.examples == MASKED:
            return batches.of_shards(self._shards(phase), self.run, self.sequences.num_items, start_step)
        examples = in_memory.KINDS[model.examples](self.training_part(phase), **model.example_options)
        return batches.of_examples(examples, self.run, start_step)

    def _shards(self, phase: str) -> Shards:
        if phase not in self._prepared:
            self._prepared[phase] = preparation.prepare(
                self.training_part(phase),
                self.run.masking,
                self.run.architecture.max_length,
                self.run.seed,
                self.workdir.prepared,
                self.processes,
            )
        return self._prepared[phase]

    def _trainer(
        self, model: Recommender, phase: str, last_step: int | None, strategy: tf.distribute.Strategy | None
    ) -> trainer.Trainer:
        return trainer.Trainer(
            model,
            lambda start_step: self.batches(phase, model, start_step),
            self.run.training,
            self.workdir.phase(phase),
            last_step=last_step,
            validate=self._validation(model) if phase == SELECT else None,
            title=TITLES[phase],
            silent=self.silent,
            checkpoint_seconds=self.checkpoint_seconds,
            strategy=strategy,
            watch=self.watch,
            initialise=lambda: self._initialise(model, phase),
            later_steps=0 if phase == phases(self.run)[-1] else self.run.training.steps,
            team=self.team,
        )

    def _given_mix(self) -> tuple[float, float] | None:
        """Returns the given factors of the evidence and of popularity; None if they are chosen in `select`.

        Raises UserError if only one is given, or none and there is no `select`.
        """
        if not self.run.uses_evidence:
            return None
        mix = self.run.architecture.evidence_gain, self.run.architecture.evidence_popularity
        if None not in mix:
            return mix
        if mix != (None, None):
            raise UserError(
                "`evidence_gain` and `evidence_popularity` must be given together. "
                f"Received: evidence_gain={mix[0]}, evidence_popularity={mix[1]}"
            )
        if SELECT not in phases(self.run):
            raise UserError(
                "`evidence_gain` and `evidence_popularity` must be given with protocol=fixed, which has no validation "
                f"items to choose them. Received: evidence_gain={mix[0]}, evidence_popularity={mix[1]}"
            )
        return None

    def _initialise(self, model: Recommender, phase: str) -> None:
        if self.run.initial_weights is None:
            model.initialise(self.training_part(phase))
            return
        start = self.start or warm_start.kept(self.workdir, self.run)
        start.give(model, self.sequences.vocabulary.items.tolist(), self.sequences.users.tolist())

    def _validation(self, model: Recommender) -> Callable[[], dict[str, float]]:
        """Returns what measures the model on the validation items, and first chooses how evidence joins its scores."""
        protocol, team, share = self.run.training.selection_metric, self.team, (self.team.index, self.team.count)
        among_all = RankingTask.from_split(self.split, "validation", {}, all_items=True).sample(VALIDATION_USERS)
        task = among_all if protocol == FULL else self.task("validation")
        ranker = Ranker(model.score, model.max_history)
        is_chosen = self.run.uses_evidence and self._given_mix() is None
        search = MixSearch(model, among_all, self.transitions) if is_chosen else None

        def measure() -> dict[str, float]:
            ranks = None if search is None else search.choose()
            if ranks is None or protocol != FULL:
                ranks = team.sum(ranker.rank(task, share=share)[protocol])
            return compute_metrics(ranks)

        return measure

    def _phase_results(self) -> dict[str, Any]:
        """Returns the steps and seconds of each training."""
        content: dict[str, Any] = {}
        for phase in phases(self.run):
            state = trainer.read_state(self.workdir.phase(phase))
            content[phase] = {"steps": state.step, "seconds": state.seconds, "best_step": state.best_step}
        return content

    def _measure_validation(self, measured: Recommender) -> dict[str, Any]:
        """Returns the metrics of `select`'s model on the validation items, by every protocol; empty without `select`.

        `measured`: the model of `measured_phase`.
        """
        if SELECT not in phases(self.run):
            return {}
        model = measured
        if measured_phase(self.run) != SELECT:
            sizes = self.sequences.num_items, self.sequences.num_users
            model = load_trained(self.run, *sizes, self.workdir, SELECT)
        return {"validation": popularity_penalty.make_ranker(model).measure(self.task("validation", all_items=True))}


def open_experiment(
    run: Run,
    sequences: Sequences | None = None,
    data_dir: Path | str | None = None,
    workdir: Path | str | None = None,
    prepared_dir: Path | str | None = None,
    init_from: Path | str | StartWeights | None = None,
    **options: Any,
) -> Experiment:
    """Opens a run's work directory and loads its data, unless they are given.

    Args:
        run: the settings.
        sequences: the data; None to load `interactions`, or else the run's data set.
        data_dir: the folder of downloaded and converted data.
        workdir: the run's folder; None for `runs/<dataset>-<model>-<digest>`.
        prepared_dir: the folder of training examples and candidates; None for `prepared` in the run's folder.
        init_from: trained weights to start from, or their path (`warm_start.read`); None for a fresh start.
        **options: `processes`, `silent`, `checkpoint_seconds`, `interactions` and `watch` of `Experiment`.

    Raises:
        UserError: if the data or the weights cannot be read, or the folder holds another run.
    """
    if init_from is not None:
        run, options["start"] = warm_start.begin(run, init_from, workdir)
    if sequences is None:
        sequences = datasets.load(options.get("interactions") or run.dataset, data_dir)
    folders = (files.expanded_path(folder) if folder else None for folder in (workdir, prepared_dir))
    return Experiment(run, sequences, WorkDirectory.of(run, *folders), **options)


def execute(run: Run, popularity_correction: float | str = 0.0, **options: Any) -> Result:
    """Prepares, trains and evaluates a run. Skips what is already prepared and trained.

    Sets the seeds of Python's, NumPy's and TensorFlow's global generators to the run's seed.

    Args:
        run: the settings.
        popularity_correction: as for `Experiment.evaluate`.
        **options: as for `open_experiment`.
    """
    alpha = parse(popularity_correction)  # reports a mistake before a long training
    experiment = open_experiment(run, **options)
    with experiment.workdir.lock():
        experiment.prepare()
        model = experiment.train()
        content = experiment.evaluate(model, alpha)
    return Result(content, model, experiment.sequences, experiment.workdir.path)
