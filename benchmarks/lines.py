"""The lines of the benchmark. Most time our code and the authors' formulation in alternating order."""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks import conversion, measuring, original, shapes
from bert4rec_tf.config.execution import OFF, ExecutionSettings
from bert4rec_tf.config.run_record import TrainingSettings
from bert4rec_tf.data.examples import in_memory, preparation
from bert4rec_tf.data.examples.cloze import ClozeExamples, cut_windows
from bert4rec_tf.data.examples.rows import Feed
from bert4rec_tf.data.sequences import LeaveOneOut, Sequences
from bert4rec_tf.evaluation import candidates
from bert4rec_tf.evaluation.metrics import COUNT_BASELINES, POPULAR, UNIFORM
from bert4rec_tf.evaluation.ranking import Ranker
from bert4rec_tf.evaluation.ranking_task import RankingTask
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models import MODELS, BERT4Rec, Recommender
from bert4rec_tf.training import calls
from bert4rec_tf.training.calls import TrainingCalls
from bert4rec_tf.training.optimizer import make_optimizer

SAMPLE_USERS = 400
"""Number of users for the authors' formulation, which handles one user at a time."""

BATCH_SIZE = 256

OUR_STEPS = 10
"""Our steps per turn. More than one, because the first allocates the memory that the authors' step has released."""

WIDTH, LAYERS = 64, 2

RANKED_USERS = 10_000
"""Users whose targets are ranked among a million items."""

PAPERS_WIDTH = 256
"""The width in the paper's Table 2."""

PAPERS_BATCH_SIZE = 128
"""Half of BATCH_SIZE, so that these lines take less time."""


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        line: what was timed, on which shape.
        unit: unit of both rates.
        ours, theirs: rates per second; `theirs` is None if there is nothing to compare with.
        notes: name -> further figure.
    """

    line: str
    unit: str
    ours: float
    theirs: float | None = None
    notes: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        return None if self.theirs is None else self.ours / self.theirs


def measure_each_shape(measure: Callable[..., Iterable[Row]]) -> Callable[[], Iterator[Row]]:
    """Returns a function that yields the rows of `measure` for each shape by its name."""
    return lambda: (row for name in shapes.SHAPES for row in measure(name))


@measure_each_shape
def measure_preparation(name: str) -> Iterator[Row]:
    """Writing masked TFRecords in one process, examples per second."""
    shape, sequences = shapes.load_shape(name)
    training = LeaveOneOut(sequences).training(with_validation=True)
    users = np.random.default_rng(1).permutation(training.num_users)[:SAMPLE_USERS]
    counts = {}

    def run_ours() -> None:
        with tempfile.TemporaryDirectory() as folder:
            examples = preparation.prepare_examples(training, shape.masking, shape.max_length, 1, Path(folder))
            counts["ours"] = examples.num_examples

    def run_theirs() -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "train.tfrecord"
            counts["theirs"] = original.prepare(training, users, shape.masking, shape.max_length, path, 1)

    timings = measuring.alternate({"ours": run_ours, "theirs": run_theirs}, rounds=3, warm_up=0)
    rates = {key: counts[key] / timings[key].median for key in counts}
    yield Row(f"preparation, {name}", "examples/s", rates["ours"], rates["theirs"])


@measure_each_shape
def measure_reading(name: str, batches: int = 200) -> Iterator[Row]:
    """Gathering batches of prepared records, read once before, examples per second."""
    shape, sequences = shapes.load_shape(name)
    training = LeaveOneOut(sequences).training(with_validation=True)
    slots = shape.masking.max_predictions
    with tempfile.TemporaryDirectory() as folder:
        examples = preparation.prepare_examples(training, shape.masking, shape.max_length, 1, Path(folder))
        feed = Feed(examples, BATCH_SIZE, seed=1)
        tables, gather = {name: tf.constant(table) for name, table in feed.tables.items()}, tf.function(feed.lay_out)
        path = Path(folder) / "theirs.tfrecord"
        original.prepare(training, np.arange(SAMPLE_USERS), shape.masking, shape.max_length, path, 1)
        timings = measuring.alternate(
            {
                "ours": lambda: _gather(feed, gather, tables, batches),
                "theirs": lambda: _exhaust(original.read(path, BATCH_SIZE, shape.max_length, slots).take(batches)),
            }
        )
    rates = {key: batches * BATCH_SIZE / timing.median for key, timing in timings.items()}
    yield Row(f"reading, {name}", "examples/s", rates["ours"], rates["theirs"])


def _gather(feed: Feed, gather: Callable[..., Batch], tables: Mapping[str, Tensor], batches: int) -> None:
    for step in range(batches):
        gather(tables, {name: column[0] for name, column in feed.read(step, 1).items()})


def _exhaust(dataset: tf.data.Dataset) -> None:
    for _ in dataset:
        pass


@measure_each_shape
def measure_training(name: str, rounds: int = 5) -> Iterator[Row]:
    """One training step, samples per second, with peak memory and the share of the machine's matrix rate."""
    shape, sequences = shapes.load_shape(name)
    batch, tokens, masked = make_batch(shape, sequences)
    times = {"ours": OUR_STEPS, "bfloat16": OUR_STEPS, "theirs": 1}
    turns = {
        kind: partial(take_steps, make_calls_of_kind(shape, sequences.num_items, kind, batch), number)
        for kind, number in times.items()
    }
    timings = measuring.alternate(turns, rounds)
    seconds = {key: timing.median / times[key] for key, timing in timings.items()}
    rate = measuring.matrix_rate()
    operations = count_useful_operations(shape, sequences.num_items, tokens, masked)
    memory = {kind: measuring.peak_memory(take_two_steps, name, kind)[1] / 1e9 for kind in ("ours", "theirs")}
    notes = {
        "share of the matrix rate": operations / seconds["ours"] / rate,
        "matrix rate GFLOP/s": rate / 1e9,
        "peak GB": memory["ours"],
        "their peak GB": memory["theirs"],
    }
    samples = {key: BATCH_SIZE / value for key, value in seconds.items()}
    yield Row(f"training step, {name}", "samples/s", samples["ours"], samples["theirs"], notes)
    yield Row(f"training step in bfloat16, {name}", "samples/s", samples["bfloat16"], samples["theirs"])


@measure_each_shape
def measure_training_as_in_the_paper(name: str, rounds: int = 3) -> Iterator[Row]:
    """One training step at the paper's width, samples per second, with the share of the machine's matrix rate."""
    shape, sequences = shapes.load_shape(name)
    batch, tokens, masked = make_batch(shape, sequences, PAPERS_BATCH_SIZE)
    training = make_calls_of_kind(shape, sequences.num_items, "ours", batch, PAPERS_WIDTH)
    (timing,) = measuring.alternate({"ours": partial(take_steps, training, 1)}, rounds).values()
    rate = measuring.matrix_rate()
    operations = count_useful_operations(shape, sequences.num_items, tokens, masked, width=PAPERS_WIDTH)
    notes = {"share of the matrix rate": operations / timing.median / rate, "matrix rate GFLOP/s": rate / 1e9}
    line = f"training step, {name}, d = {PAPERS_WIDTH}"
    yield Row(line, "samples/s", PAPERS_BATCH_SIZE / timing.median, notes=notes)


class GivenBatch:
    """A training that reads the same batch in each step."""

    tables: Mapping[str, np.ndarray] = {}

    def __init__(self, batch: Batch) -> None:
        self.columns = {name: np.asarray(column)[None] for name, column in batch.items()}
        self.batch_size = len(next(iter(batch.values())))

    def read(self, first_step: int, count: int) -> dict[str, np.ndarray]:
        return {name: np.repeat(column, count, axis=0) for name, column in self.columns.items()}

    def lay_out(self, tables: Mapping[str, Tensor], columns: Mapping[str, Tensor]) -> Batch:
        return columns


def take_steps(training: TrainingCalls, number: int) -> None:
    """Takes so many steps, each to its end."""
    for step in range(number):
        training.run(training.read(step, 1), 1)


def make_batch(shape: shapes.Shape, sequences: Sequences, batch_size: int = BATCH_SIZE) -> tuple[Batch, int, int]:
    """Returns a training batch, its number of real tokens, and its number of masked ones."""
    windows = cut_windows(LeaveOneOut(sequences).training(True), shape.max_length, shape.masking.window_step)
    examples = ClozeExamples(windows, shape.masking, shape.max_length, sequences.num_items)
    rows_drawn = np.random.default_rng(2).integers(examples.num_examples, size=batch_size)
    columns = examples.mask(rows_drawn, [3])
    batch = {name: tf.constant(column.astype(np.int32)) for name, column in columns.items()}
    return batch, int(columns["lengths"].sum()), int(np.count_nonzero(columns["mask_targets"]))


def make_calls_of_kind(
    shape: shapes.Shape, num_items: int, kind: str, batch: Batch, width: int = WIDTH
) -> TrainingCalls:
    """Returns the training by our formulation ("ours", "bfloat16") or the authors' ("theirs")."""
    precision: dict[str, Any] = {"dtype": "mixed_bfloat16"} if kind == "bfloat16" else {}
    model: Any = BERT4Rec(
        num_items, max_length=shape.max_length, hidden_dim=width, dropout=0.2, attention_dropout=0.2, **precision
    )
    if kind == "theirs":
        model.training_loss = lambda batch: original.training_loss(model, batch)
    return make_calls(model, GivenBatch(batch))


def make_calls(model: Recommender, feed: calls.Feed) -> TrainingCalls:
    settings = TrainingSettings(steps=1_000, batch_size=BATCH_SIZE)
    optimizer = make_optimizer(settings)
    optimizer.build(model.trainable_variables)
    return TrainingCalls(model, optimizer, feed, settings.clip_norm, ExecutionSettings(compile=OFF))


def take_two_steps(name: str, kind: str) -> None:
    """Takes two steps, to measure the peak memory of a step."""
    shape, sequences = shapes.load_shape(name)
    batch, _, _ = make_batch(shape, sequences)
    take_steps(make_calls_of_kind(shape, sequences.num_items, kind, batch), 2)


def count_useful_operations(shape: shapes.Shape, num_items: int, tokens: int, masked: int, width: int = WIDTH) -> float:
    """Returns the fewest FLOPs of a step: three products of masked positions with the item table, and the encoder's."""
    return 3 * 2 * (masked * (num_items + 2) * width + LAYERS * tokens * 12 * width**2)


OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "sasrec": ("sasrec", {}),
    "sasrec by softmax": ("sasrec", {"loss": "cross_entropy"}),
    "gru4rec": ("gru4rec", {}),
    "gru4rec_plus": ("gru4rec_plus", {}),
    "caser": ("caser", {}),
}
"""Line -> model and settings."""


@measure_each_shape
def measure_other_models(name: str) -> Iterator[Row]:
    """Training steps of other models that read histories, and making their examples, samples per second."""
    shape, sequences = shapes.load_shape(name)
    training = LeaveOneOut(sequences).training(True)
    turns = {}
    for line, (model_name, settings) in OTHERS.items():
        kind = MODELS[model_name]
        options: dict[str, Any] = (
            {"num_users": sequences.num_users} if kind.needs_users else {"max_length": shape.max_length}
        )
        model = kind(sequences.num_items, hidden_dim=WIDTH, **options, **settings)
        examples = in_memory.EXAMPLE_KINDS[kind.examples](training, **model.example_options)
        turns[line] = partial(take_steps, make_calls(model, Feed(examples, BATCH_SIZE, seed=1)), OUR_STEPS)
    for line, timing in measuring.alternate(turns, rounds=3).items():
        yield Row(f"training step, {line}, {name}", "samples/s", OUR_STEPS * BATCH_SIZE / timing.median)


@measure_each_shape
def measure_evaluation(name: str) -> Iterator[Row]:
    """Ranking every user's target, users per second."""
    shape, sequences = shapes.load_shape(name)
    split = LeaveOneOut(sequences)
    model = BERT4Rec(sequences.num_items, max_length=shape.max_length, hidden_dim=WIDTH)
    negatives = candidates.draw_popular(sequences, split.users, 100, 0)
    sampled_task = RankingTask.from_split(split, "test", {POPULAR: negatives})
    full_task = RankingTask.from_split(split, "test", {POPULAR: negatives, UNIFORM: negatives}, all_items=True)
    rows = np.random.default_rng(1).permutation(len(split.users))[:SAMPLE_USERS]
    users, targets = split.users[rows], sampled_task.targets[rows]
    ranker, likelihoods = Ranker(model), original.make_likelihoods(model)
    timings = measuring.alternate(
        {
            "sampled": lambda: ranker.rank(sampled_task),
            "full": lambda: ranker.rank(full_task),
            "theirs": lambda: original.evaluate(
                likelihoods, model.max_history, sampled_task.histories, users, targets, sequences, BATCH_SIZE
            ),
        },
        rounds=3,
    )
    theirs = SAMPLE_USERS / timings["theirs"].median
    for kind in ("sampled", "full"):
        seconds = timings[kind].median
        rate = len(split.users) / seconds
        yield Row(f"evaluation, {kind}, {name}", "users/s", rate, theirs, {"seconds for all": seconds})


def measure_large_evaluation() -> Iterator[Row]:
    """Ranking RANKED_USERS targets among a million items by all protocols, in a new process, users per second."""
    shape = shapes.MILLION
    (seconds, share), peak = measuring.peak_memory(_rank_among_many, shape, RANKED_USERS)
    notes = {"seconds for all": seconds, "peak GB": peak / 1e9, "share of the matrix rate": share}
    yield Row(f"evaluation, full, {shape.items:,} items", "users/s", RANKED_USERS / seconds, notes=notes)


def _rank_among_many(shape: shapes.Shape, num_users: int) -> tuple[float, float]:
    """Returns the seconds, and the rate of the products of users and items as a share of the matrix rate."""
    split = LeaveOneOut(shapes.generate(shape.users, shape.items, shape.shortest, shape.mean))
    users = split.users[:num_users]
    popular_items = candidates.draw_popular(split.histories("test"), users, 100, 0)
    negatives = {POPULAR: popular_items, UNIFORM: popular_items}
    task = RankingTask(split.histories("test"), users, split.targets("test")[:num_users], negatives, True)
    ranker = Ranker(BERT4Rec(shape.items, max_length=shape.max_length, hidden_dim=WIDTH))
    (timing,) = measuring.alternate({"full": lambda: ranker.rank(task)}, rounds=1).values()
    return timing.median, 2 * len(users) * shape.items * WIDTH / timing.median / measuring.matrix_rate()


def measure_counting_evaluation(users: int = 10_000, items: int = 10_000, actions: int = 20) -> Iterator[Row]:
    """Ranking with the counting baselines, beside their scores of all items at once, in users per processor second."""
    sequences = shapes.generate(users, items, actions, actions)
    split = LeaveOneOut(sequences)
    negatives = candidates.draw_popular(sequences, split.users, 100, 0)
    task = RankingTask.from_split(split, "test", {POPULAR: negatives, UNIFORM: negatives}, all_items=True)
    notes = {"matrix rate GFLOP/s": measuring.matrix_rate() / 1e9}
    for name in COUNT_BASELINES:
        model = MODELS[name](sequences.num_items)
        model.adapt(split.training(with_validation=True))
        rankers = {"ours": Ranker(model), "theirs": Ranker(model.score, model.max_history)}
        calls = {key: partial(ranker.rank, task) for key, ranker in rankers.items()}
        ours, theirs = (users / timing.processor for timing in measuring.alternate(calls, rounds=3).values())
        yield Row(f"evaluation, {name}, {items:,} items", "users/s", ours, theirs, notes)


@measure_each_shape
def measure_drawing(name: str) -> Iterator[Row]:
    """Drawing 100 popular negatives for every user, users per second."""
    _, sequences = shapes.load_shape(name)
    users = LeaveOneOut(sequences).users
    sample = np.random.default_rng(1).permutation(users)[:SAMPLE_USERS]
    timings = measuring.alternate(
        {
            "ours": lambda: candidates.draw_popular(sequences, users, 100, 0),
            "theirs": lambda: original.draw_candidates(sequences, sample, np.random.RandomState(1)),
        },
        rounds=3,
    )
    ours, theirs = len(users) / timings["ours"].median, len(sample) / timings["theirs"].median
    yield Row(f"candidates, {name}", "users/s", ours, theirs)


def measure_conversion() -> Iterator[Row]:
    """Converting a file of 20 million ratings to stored sequences, rows per second, compared with plain pandas."""
    for name, sizes in conversion.LARGE.items():
        with tempfile.TemporaryDirectory() as folder:
            source, target = Path(folder) / "ratings.csv", Path(folder) / "sequences"
            rows = conversion.write(source, *sizes)
            calls = {"peak GB": conversion.convert_with_package, "their peak GB": conversion.convert_with_pandas}
            conversions = {key: partial(call, source, target) for key, call in calls.items()}
            timing, their_timing = measuring.alternate(conversions, rounds=1, warm_up=0).values()
            memory = {key: measuring.peak_memory(call, source, target)[1] / 1e9 for key, call in calls.items()}
        ours, theirs = rows / timing.median, rows / their_timing.median
        ratios = {"processor ratio": their_timing.processor / timing.processor}
        yield Row(f"conversion, {name}", "rows/s", ours, theirs, {**ratios, **memory})


LINES: dict[str, Callable[[], Iterable[Row]]] = {
    "conversion": measure_conversion,
    "preparation": measure_preparation,
    "reading": measure_reading,
    "training": measure_training,
    "training_as_in_the_paper": measure_training_as_in_the_paper,
    "models": measure_other_models,
    "evaluation": measure_evaluation,
    "evaluation_large": measure_large_evaluation,
    "evaluation_counts": measure_counting_evaluation,
    "candidates": measure_drawing,
}
