"""Training steps on a GPU: each preset and precision as one compiled program, and by single calls as on a CPU."""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks import shapes
from bert4rec_tf.config import presets
from bert4rec_tf.config.execution import OFF, XLA, ExecutionSettings
from bert4rec_tf.config.run_record import Run
from bert4rec_tf.data.examples.masked import MaskedExamples
from bert4rec_tf.data.examples.rows import Feed
from bert4rec_tf.data.sequences import LeaveOneOut, Sequences
from bert4rec_tf.foundation import devices
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.models import BERT4Rec
from bert4rec_tf.runs.trainings import make_model
from bert4rec_tf.training.calls import TrainingCalls
from bert4rec_tf.training.optimizer import make_optimizer

PRECISIONS: dict[str, dict[str, Any]] = {
    "float32": {},
    "TensorFloat-32": {"tensor_float_32": True},
    "bfloat16": {"mixed_precision": True},
}
CASES = (
    ("beauty", {"preset": "fast"}, tuple(PRECISIONS)),
    ("ml-1m", {"preset": "fast"}, tuple(PRECISIONS)),
    ("ml-1m", {"preset": "best"}, ("float32",)),
    ("beauty", {"preset": "best"}, ("float32",)),
    ("ml-1m", {"preset": "fast", "hidden_dim": 256, "num_heads": 4, "batch_size": 256}, ("float32", "TensorFloat-32")),
)
"""Data set whose shape is generated, settings, and precisions; the first ones are the ones to know."""

SECONDS = 1.0
"""How long the steps of a case are timed."""

SINGLE_STEPS = 20
"""Steps that are timed call by call."""


@dataclass(frozen=True)
class Line:
    """One case.

    Attributes:
        case, precision: what was trained, and how exactly.
        batch_size, width, slots: examples of a batch, places of a row, masked places of a row.
        compile_seconds: of the first call.
        milliseconds: of a step, its input included.
        single_milliseconds: of a step in calls of one step that are not compiled as one program.
    """

    case: str
    precision: str
    batch_size: int
    width: int
    slots: int
    compile_seconds: float
    milliseconds: float
    single_milliseconds: float


def measure(max_seconds: float, needs_gpu: bool = True) -> dict[str, Any]:
    """Prints a line for each case, as many as `max_seconds` allow. Returns the lines and the cards' names.

    Raises UserError if there is no GPU. `needs_gpu`: whether there must be one; tests do without.
    """
    if needs_gpu and not devices.has_accelerator():
        raise UserError("`--accelerator` needs a GPU that TensorFlow can use. Received: none")
    cards, begin, lines, skipped_cases = devices.describe_accelerators(), time.monotonic(), [], []
    print(
        f"{', '.join(cards)}\n{'case':<44}{'precision':<16}{'compile s':>10}{'ms a step':>11}{'single':>9}", flush=True
    )
    for name, settings, precisions in CASES:
        _, sequences = shapes.load_shape(name)
        for precision in precisions:
            case = f"{name} " + ", ".join(f"{key}={value}" for key, value in settings.items())
            if time.monotonic() - begin > max_seconds:
                skipped_cases.append(f"{case}, {precision}")
                continue
            run = presets.make_run(name, size=sequences, **settings, **PRECISIONS[precision])
            line = measure_case(case, precision, run, sequences)
            lines.append(line)
            figures = f"{line.compile_seconds:>10.1f}{line.milliseconds:>11.3f}{line.single_milliseconds:>9.1f}"
            print(f"{case:<44}{precision:<16}{figures}", flush=True)
    for case in skipped_cases:
        print(f"no time for: {case}")
    return {"cards": cards, "lines": [asdict(line) for line in lines], "left_out": skipped_cases}


def measure_case(case: str, precision: str, run: Run, sequences: Sequences) -> Line:
    """Times the steps of a run on new weights."""
    compile_seconds, milliseconds, feed = _time_steps(run, sequences, XLA)
    _, single, _ = _time_steps(run, sequences, OFF)
    examples: Any = feed.examples
    return Line(
        case, precision, feed.batch_size, examples.width, examples.num_slots, compile_seconds, milliseconds, single
    )


def _time_steps(run: Run, sequences: Sequences, compile: str) -> tuple[float, float, Feed]:
    training = LeaveOneOut(sequences).training(with_validation=False)
    model: Any = make_model(run, sequences.num_items, sequences.num_users)
    assert isinstance(model, BERT4Rec)
    optimizer = make_optimizer(run.training, model)
    optimizer.build(model.trainable_variables)
    feed = Feed(MaskedExamples(training, model.max_length, run.masking), run.training.batch_size, run.seed)
    calls = TrainingCalls(model, optimizer, feed, run.training.clip_norm, ExecutionSettings(compile=compile))
    seconds = list(_time_calls(calls, SINGLE_STEPS if compile == OFF else calls.max_steps))
    return seconds[0], 1e3 * float(np.median(seconds[1:])), feed


def _time_calls(calls: TrainingCalls, steps: int) -> Iterator[float]:
    """Yields the seconds of the first step, then those of a step in each of some calls."""
    begin = time.perf_counter()
    calls.run(calls.read(0, 1), 1)
    yield time.perf_counter() - begin
    number, first, end = 1, 1, time.perf_counter() + SECONDS
    while number > 0:
        begin = time.perf_counter()
        if calls.is_one_program:
            calls.run(calls.read(first, number), number)
        else:
            for step in range(first, first + number):
                calls.run(calls.read(step, 1), 1)
        yield (time.perf_counter() - begin) / number
        first += number
        number = min(steps, 4 * number) if time.perf_counter() < end else 0
