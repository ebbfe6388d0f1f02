"""One run: prepare, train, evaluate. Ordinary functions, for the command line, a notebook or a sweep."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert4rec_tf import evaluation, files, training
from bert4rec_tf.config import Run
from bert4rec_tf.data import datasets, preparation
from bert4rec_tf.data.masking import mask_dynamically
from bert4rec_tf.data.synthetic import MarkovCatalogue
from bert4rec_tf.data.tfrecords import Shards
from bert4rec_tf.errors import UserError
from bert4rec_tf.evaluation import Ranker, RankingTask
from bert4rec_tf.models import MODELS, Recommender
from bert4rec_tf.models.pop import Pop
from bert4rec_tf.sequences import LeaveOneOut, Sequences
from bert4rec_tf.types import Batch
from bert4rec_tf.workdir import WorkDirectory, versions

CHOOSE, FINAL = "choose", "final"
"""The two trainings of a run: with the validation item held out, and with it."""


@dataclass(frozen=True)
class Result:
    """What a run ends with.

    Attributes:
        metrics: what is in `metrics.json`: settings, metrics of validation and test, references.
        model: the model that was measured on the test items.
        sequences: the data, with the vocabulary that the model's ids stand for.
        workdir: where everything lies.
    """

    metrics: dict[str, Any]
    model: Recommender
    sequences: Sequences
    workdir: Path


@dataclass
class Experiment:
    """A run on its data, in its folder: the parts of the path, each of which can be called by itself.

    Attributes:
        run: what to do.
        sequences: the data.
        workdir: where.
        processes: how many processes prepare examples.
        silent: show no progress.
    """

    run: Run
    sequences: Sequences
    workdir: WorkDirectory
    processes: int = 1
    silent: bool = False
    split: LeaveOneOut = field(init=False)
    _prepared: dict[str, Shards] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.split = LeaveOneOut(self.sequences)
        if not len(self.split.users):
            raise UserError("No user has three actions, so there is nothing to measure on")
        self.workdir.claim(self.run, self.sequences.fingerprint)
        if not self.workdir.vocabulary.exists():
            files.write_text(self.workdir.vocabulary, "".join(f"{item}\n" for item in self.sequences.vocabulary.items))

    def phases(self) -> list[str]:
        """The trainings that this run's protocol asks for."""
        settings = self.run.training
        if settings.train_on_validation:
            return [FINAL]
        return [CHOOSE, FINAL] if settings.retrain else [CHOOSE]

    def new_model(self) -> Recommender:
        """Returns the model with its initial weights, which the seed decides."""
        keras.utils.set_random_seed(self.run.seed)
        return MODELS[self.run.model](self.sequences.num_items, **asdict(self.run.architecture))

    def prepare(self) -> None:
        """Writes the training examples of all phases and draws the candidates, unless they are there."""
        if MODELS[self.run.model].examples is not None:
            for phase in self.phases():
                self._shards(phase)
        self.task("test")

    def train(self) -> Recommender:
        """Runs the trainings, going on where they were stopped, and returns the model to be measured."""
        if MODELS[self.run.model].examples is None:
            return self.trained_model()
        last_step = None
        for phase in self.phases():
            model, trainer = self._trainer(phase, last_step)
            state = trainer.run()
            last_step = state.best_step or None
        return model

    def trained_model(self) -> Recommender:
        """Returns the model to be measured from a finished training. Raises UserError where there is none."""
        model, phase = self.new_model(), self.phases()[-1]
        model.adapt(self.split.training(phase == FINAL))
        if model.examples is not None:
            training.load_weights(model, self.workdir.phase(phase))
        return model

    def evaluate(self, model: Recommender) -> dict[str, Any]:
        """Measures a model on the test items, once, and writes the ranks and `metrics.json`."""
        task = self.task("test")
        ranks = Ranker(model.score, model.max_history).ranks(task)
        with files.whole_file(self.workdir.ranks("test")) as aside, open(aside, "wb") as file:
            np.savez(file, users=task.users, ranks=ranks, num_candidates=task.num_candidates)
        content = {
            "run": self.run.to_dict(),
            "digest": self.run.digest,
            "data_fingerprint": self.sequences.fingerprint,
            "versions": versions(),
            "users": len(task.users),
            "users_not_evaluated": self.split.num_not_evaluated,
            "users_with_fewer_candidates": int((task.num_candidates < self.run.evaluation.num_negatives).sum()),
            "test": evaluation.metrics(ranks),
            "pop": evaluation.metrics(self._pop_ranks(task)),
            "random": evaluation.random_metrics(task.num_candidates),
            **self._trainings(),
        }
        content.update(self._references(task))
        files.write_json(self.workdir.metrics, content)
        return content

    @cached_property
    def negatives(self) -> np.ndarray:
        """The frozen candidates, int32 [evaluated users, c]: drawn once for the data and their seed, and kept."""
        settings, digest = self.run.evaluation, self.sequences.fingerprint[:16]
        path = self.workdir.prepared / f"negatives-{digest}-{settings.num_negatives}-{settings.candidates_seed}.npy"
        if path.exists():
            kept = np.load(path, allow_pickle=False)
            if kept.shape == (len(self.split.users), settings.num_negatives):
                return kept
        files.make_folder(path.parent)
        drawn = evaluation.draw_popular(
            self.sequences, self.split.users, settings.num_negatives, settings.candidates_seed
        )
        with files.whole_file(path) as aside, open(aside, "wb") as file:
            np.save(file, drawn, allow_pickle=False)
        return drawn

    def task(self, part: str) -> RankingTask:
        """Returns the ranking task of "validation" or "test"."""
        return RankingTask.of(self.split, part, self.negatives)

    def batches(self, phase: str, start_step: int = 0) -> tf.data.Dataset:
        """Returns the training batches of a phase from a step on, without end."""
        run, shards = self.run, self._shards(phase)
        dataset = shards.read(run.training.batch_size, run.seed, start_step)
        if run.masking.masking == "dynamic":
            dataset = mask_dynamically(dataset, run.masking, self.sequences.num_items, run.seed, start_step)
        return dataset.map(_training_batch).prefetch(8)

    def _shards(self, phase: str) -> Shards:
        if phase not in self._prepared:
            self._prepared[phase] = preparation.prepare(
                self.split.training(phase == FINAL),
                self.run.masking,
                self.run.architecture.max_length,
                self.run.seed,
                self.workdir.prepared,
                self.processes,
            )
        return self._prepared[phase]

    def _trainer(self, phase: str, last_step: int | None) -> tuple[Recommender, training.Trainer]:
        model = self.new_model()
        model.adapt(self.split.training(phase == FINAL))
        trainer = training.Trainer(
            model,
            lambda start_step: self.batches(phase, start_step),
            self.run.training,
            self.workdir.phase(phase),
            last_step=last_step,
            validate=self._validation(model) if phase == CHOOSE else None,
            title="choosing on validation" if phase == CHOOSE else "training",
            silent=self.silent,
        )
        return model, trainer

    def _validation(self, model: Recommender) -> Callable[[], dict[str, float]]:
        task, ranker = self.task("validation"), Ranker(model.score, model.max_history)
        return lambda: evaluation.metrics(ranker.ranks(task))

    def _trainings(self) -> dict[str, Any]:
        """What the trainings of this run saw: their steps, seconds and curves, and the validation metrics chosen by."""
        content: dict[str, Any] = {}
        if MODELS[self.run.model].examples is None:
            return content
        for phase in self.phases():
            state = training.read_state(self.workdir.phase(phase))
            content[phase] = {"steps": state.step, "seconds": state.seconds, "best_step": state.best_step}
            if state.best():
                content["validation"] = {name: state.best()[name] for name in evaluation.METRICS}
        return content

    def _pop_ranks(self, task: RankingTask) -> np.ndarray:
        pop = Pop(self.sequences.num_items)
        pop.adapt(self.split.training(with_validation=True))
        return Ranker(pop.score, max_history=1).ranks(task)

    def _references(self, task: RankingTask) -> dict[str, dict[str, float]]:
        """What else is known for these very data: the paper's numbers, or those of the data's own generator."""
        dataset = datasets.DATASETS.get(self.run.dataset)
        if dataset is None:
            return {}
        generator = dataset.generator
        if isinstance(generator, MarkovCatalogue):
            same = generator.sequences().fingerprint == self.sequences.fingerprint
            return {"ceiling": self._ceiling(generator, task)} if same else {}
        table1 = datasets.paper()["table1"].get(self.run.dataset, {})
        sizes = (self.sequences.num_users, self.sequences.num_items, self.run.evaluation.num_negatives)
        if sizes != (table1.get("users"), table1.get("items"), 100):
            return {}
        return {"paper": datasets.paper()["table2"][self.run.dataset][self.run.model]}

    def _ceiling(self, generator: MarkovCatalogue, task: RankingTask) -> dict[str, float]:
        """The metrics of ranking by the generator's own transition table."""
        scores = generator.scores(self.sequences, task.histories)[task.users]
        columns = np.maximum(task.candidates, 1) - 1
        return evaluation.metrics(evaluation.rank_targets(np.take_along_axis(scores, columns, axis=1), task.candidates))


def open_experiment(
    run: Run,
    sequences: Sequences | None = None,
    data_dir: Path | str | None = None,
    workdir: Path | str | None = None,
    prepared_dir: Path | str | None = None,
    processes: int = 1,
    silent: bool = False,
) -> Experiment:
    """Loads a run's data, unless they are given, and opens its work directory.

    Raises:
        UserError: where the data cannot be read, or the directory is another run's.
    """
    if sequences is None:
        sequences = datasets.load(run.dataset, Path(data_dir) if data_dir else None)
    folder = WorkDirectory.of(run, Path(workdir) if workdir else None, Path(prepared_dir) if prepared_dir else None)
    return Experiment(run, sequences, folder, processes, silent)


def execute(run: Run, **options: Any) -> Result:
    """Prepares, trains and evaluates; what is finished already is not done again.

    Seeds the global generators of Python, NumPy and TensorFlow with the run's seed.

    Args:
        run: what to do.
        **options: as for `open_experiment`.
    """
    experiment = open_experiment(run, **options)
    experiment.prepare()
    model = experiment.train()
    return Result(experiment.evaluate(model), model, experiment.sequences, experiment.workdir.path)


def _training_batch(columns: dict[str, tf.Tensor]) -> Batch:
    lengths = tf.math.count_nonzero(columns["items"], axis=1, dtype=tf.int32)
    rest = {name: column for name, column in columns.items() if name not in ("user", "window", "epoch")}
    return {"users": columns["user"], "lengths": lengths, **rest}
