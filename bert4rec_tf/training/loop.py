"""The training loop of all models: calls of some steps, validation, checkpoints, resuming, early stopping."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from bert4rec_tf.config.execution import ExecutionSettings
from bert4rec_tf.config.run_record import TrainingSettings
from bert4rec_tf.foundation import devices, files, plots
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.npz import CorruptFileError
from bert4rec_tf.foundation.progress import Progress
from bert4rec_tf.foundation.signals import delay_interrupts
from bert4rec_tf.training import checkpoints, workers
from bert4rec_tf.training.calls import CALL_SECONDS, Feed, ReadAhead, TrainingCalls
from bert4rec_tf.training.optimizer import count_decay_steps, make_optimizer, make_schedule
from bert4rec_tf.training.step import refuse_late_weights
from bert4rec_tf.training.tensorboard import TensorBoardWriter

BEST_STEP_METRIC = "ndcg@10"
"""The validation metric that decides which step is best."""

BEST = "best.npz"

TIMED_STEPS = 8
"""Steps that `Training.measure` times, after one that compiles."""

STEPS_ELSEWHERE = 10
"""Steps of a call where replicas or machines share each step, whose times differ, on accelerators or over a network."""


@dataclass
class State:
    """Everything that is needed to resume a training, besides the variables.

    Attributes:
        step: steps done.
        seconds: training time so far, including the time before a resume.
        best_step: the step with the highest validation metric; 0 before the first validation.
        curve: one row per evaluation: step, seconds, loss (mean since the previous row) and the validation metrics.
        finished: whether the last step was reached or training stopped early.
        loss_sum, loss_count: the training loss since the last evaluation.
    """

    step: int = 0
    seconds: float = 0.0
    best_step: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)
    finished: bool = False
    loss_sum: float = 0.0
    loss_count: int = 0

    def best(self) -> dict[str, float] | None:
        """Returns the best step's row of the curve; None before a validation."""
        return next((row for row in self.curve if row["step"] == self.best_step), None)


@dataclass(frozen=True)
class Watch:
    """Who looks on while a model is trained.

    Attributes:
        title: shown with the progress.
        silent: whether to show no progress.
        later_steps: the most steps of the run's later trainings, for the time left that is shown.
        report: called with each new row of the curve; after a resume, first with the earlier rows. If it raises, the
            training ends and can be resumed from the last checkpoint.
    """

    title: str = "training"
    silent: bool = False
    later_steps: int = 0
    report: Callable[[dict[str, float]], None] | None = None


class Costs(NamedTuple):
    """What the parts of a training take, in seconds.

    Attributes:
        compiling: the first step.
        step: a further step.
        first_measurement, measurement: the first and each further measurement on the validation items.
    """

    compiling: float
    step: float
    first_measurement: float = 0.0
    measurement: float = 0.0


@dataclass(eq=False)
class Training:
    """The training of a model in a folder, to `stop_after` or `steps`.

    The machines that this process has joined (`workers.current_team`) train together: all read the checkpoints, and
    the chief alone writes.

    Attributes:
        model: what `step.take_step` takes, created under the strategy of the replicas, if any.
        batches: the training batches, from any step on.
        settings: optimizer, schedule, and how often to evaluate.
        folder: for checkpoints, the curve and TensorBoard's files.
        validate: returns the metrics on the validation items; None if training includes these items.
        watch: who looks on.
        execution: how to compute, and how often to save a checkpoint.
        max_seconds: the training also stops after so long, at the end of a call; None for no limit.
    """

    model: Any
    batches: Feed
    settings: TrainingSettings
    folder: Path
    validate: Callable[[], dict[str, float]] | None = None
    watch: Watch = field(default_factory=Watch)
    execution: ExecutionSettings = field(default_factory=ExecutionSettings)
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        self.team, self.state = workers.current_team(), State()
        with self.model.distribute_strategy.scope():
            self.schedule = make_schedule(self.settings)
            self.optimizer = make_optimizer(self.settings, self.model, self.schedule)
            self.optimizer.build(self.model.trainable_variables)
        self.variables = {"model": self.model.variables, "optimizer": self.optimizer.variables}
        self.checkpoints = checkpoints.Series(self.folder)

    @cached_property
    def calls(self) -> TrainingCalls:
        clip_norm, first_step = self.settings.clip_norm, self.state.step
        return TrainingCalls(self.model, self.optimizer, self.batches, clip_norm, self.execution, first_step)

    def measure(self) -> Iterator[Costs]:
        """Yields the costs of steps, then those of measurements too, and puts all variables back.

        The first calls of the training are timed. Their compiled program serves `run`, which takes them again.
        """
        old_values = [(variable, np.array(variable.numpy())) for group in self.variables.values() for variable in group]
        steps = min(TIMED_STEPS, self.calls.max_steps)
        laps = [time.monotonic()]
        for first, count in ((0, 1), (1, steps)):
            self.calls.run(self.calls.read(first, count), count)
            laps.append(time.monotonic())
        costs = Costs(laps[1] - laps[0], (laps[2] - laps[1]) / steps)
        yield costs
        for _ in range(2):
            if self.validate is not None:
                self.validate()
            laps.append(time.monotonic())
        for variable, value in old_values:
            variable.assign(value)
        yield costs._replace(first_measurement=laps[3] - laps[2], measurement=laps[4] - laps[3])

    def change_settings(self, settings: TrainingSettings, max_seconds: float) -> None:
        """Trains for other numbers of steps, and so many seconds. Nothing else may change."""
        self.settings, self.max_seconds = settings, max_seconds
        self.schedule.set_lengths(count_decay_steps(settings), settings.warmup_steps)

    def run(self) -> State:
        """Trains, or resumes from the folder's newest checkpoint. The model then has its best weights.

        Raises:
            UserError: if the loss or the gradient norm is NaN or infinite, the checkpoints are damaged or have more
                steps than there are to take, or a step does not fit into memory.
            KeyboardInterrupt: after Ctrl-C or SIGTERM, once a checkpoint is written.
        """
        self.last_step = self.settings.stop_after or self.settings.steps
        with self.team.run_chief_first():
            files.make_folder(self.folder)
        if content := self.checkpoints.restore(self.variables):
            self.state = State(**content)
        has_ended = self.state.finished and self.validate is None and self.max_seconds is None
        if self.state.step > self.last_step or (has_ended and self.state.step < self.last_step):
            raise UserError(
                f"{self.folder}: has taken {self.state.step} steps, but this run ends after {self.last_step}; delete "
                f"{checkpoints.name_repeated(self.folder)} to train again"
            )
        if self.team.is_chief and not self.state.finished:
            self._save_best()  # a process that was killed may have written the checkpoint alone
        self.team.agree({"checkpoint": f"of step {self.state.step}"})
        if self.watch.report is not None:
            for row in self.state.curve:
                self.watch.report(dict(row))
        if not self.state.finished:
            with self.team.report_lost_workers(), self.team.watch_others():
                self._take_all_steps()
            self.team.agree({"number of steps": str(self.state.step)})
        if self.validate is not None and self.state.best_step != self.state.step:
            restore_best(self.model, self.folder, self.state)
        return self.state

    def _take_all_steps(self) -> None:
        state, settings = self.state, self.settings
        is_compiled = "calls" in self.__dict__
        calls, pace = self.calls, self._make_pace(self.calls)
        num_pauses = -(-self.last_step // settings.evaluate_every) - state.step // settings.evaluate_every
        self.progress = Progress(
            self.watch.title,
            self.last_step,
            state.step,
            calls.feed.batch_size,
            silent=self.watch.silent,
            num_later=self.watch.later_steps,
            num_pauses=num_pauses,
        )
        if not is_compiled:
            self.progress.say(f"{self.watch.title}: compiling the graph, which makes the first step slow")
        self.tensorboard = TensorBoardWriter(
            self.folder / "tensorboard" if self.team.is_chief else None, settings.clip_norm
        )
        reader = ReadAhead(calls.read)
        begin, last_saved_at = time.monotonic() - state.seconds, time.monotonic()
        with (
            contextlib.closing(self.progress),
            contextlib.closing(self.tensorboard),
            contextlib.closing(reader),
            delay_interrupts() as is_interrupted,
        ):

            def is_stopped() -> bool:
                """Returns whether any machine has a signal to stop."""
                return bool(self.team.sum(np.array([is_interrupted()]))[0])

            while not state.finished:
                count = self._count_next(state.step, pace)
                columns = reader.read(state.step, count, self._count_next(state.step + count, pace))
                called_at = time.monotonic()
                self._record_steps(calls.run(columns, count))
                pace.note(count, time.monotonic() - called_at)
                state.seconds = time.monotonic() - begin
                if self.max_seconds is not None and state.seconds >= self.max_seconds:
                    self._end_here()
                is_due = state.step == self.last_step or state.step % settings.evaluate_every == 0
                if is_due:
                    with self.progress.pause():
                        self._evaluate()
                    state.seconds = time.monotonic() - begin
                stops = is_stopped()
                if is_due or stops or time.monotonic() - last_saved_at >= self.execution.checkpoint_seconds:
                    if self.team.is_chief:
                        self.checkpoints.save(self.variables, state.step, asdict(state))
                        self._save_best()
                    self.tensorboard.flush(is_last=stops or state.finished)
                    last_saved_at = time.monotonic()
                if is_due:
                    self._report(state.curve[-1], stops)
                if stops:
                    raise KeyboardInterrupt
            if is_stopped():  # since the last step
                raise KeyboardInterrupt

    def _save_best(self) -> None:
        """Writes the weights if this step is the best. Its checkpoint is there, and can write them again."""
        if self.state.best_step == self.state.step > 0:
            checkpoints.save(self.folder / BEST, {"model": self.model.variables}, asdict(self.state))

    def _report(self, row: dict[str, float], stops: bool) -> None:
        """Tells the caller of a measurement. It may end the training by an error; then a signal to stop counts more."""
        if self.watch.report is None:
            return
        try:
            self.watch.report(dict(row))
        except BaseException as error:
            self.tensorboard.flush(is_last=True)  # the checkpoint has these steps
            if stops:
                raise KeyboardInterrupt from error
            raise

    def _make_pace(self, calls: TrainingCalls) -> "Pace":
        steps = self.execution.steps_per_call
        if not steps and not calls.is_one_program:
            is_shared = self.team.count > 1 or devices.has_accelerator()
            steps = STEPS_ELSEWHERE if is_shared else 1
        return Pace(calls.max_steps, steps)

    def _count_next(self, step: int, pace: "Pace") -> int:
        """Returns the number of steps of the call after step `step`: at most to the next measurement; 0 at the end."""
        interval = self.settings.evaluate_every
        return min(pace.count, interval - step % interval, self.last_step - step)

    def _record_steps(self, results: dict[str, np.ndarray]) -> None:
        """Counts the steps of a call. Raises UserError for a loss or a norm that is no number."""
        for index, loss in enumerate(results["loss"]):
            self.state.step += 1
            values = {name: float(column[index]) for name, column in results.items()}
            if not math.isfinite(values["loss"] + values["gradient_norm"]):
                self.tensorboard.flush(is_last=True)  # how it came to this
                raise UserError(
                    f"The loss is {values['loss']} and the gradient norm {values['gradient_norm']} at step "
                    f"{self.state.step}: a lower --learning_rate or a longer --warmup_steps usually helps"
                )
            self.state.loss_sum += float(loss)
            self.state.loss_count += 1
            self.tensorboard.add(self.state.step, values)
        mean = self.state.loss_sum / self.state.loss_count
        self.progress.advance(len(results["loss"]), loss=mean, rate=values["learning_rate"])

    def _end_here(self) -> None:
        """Makes this step the last one, because `max_seconds` have passed."""
        if self.state.step < self.last_step:
            self.progress.say(
                f"{self.watch.title}: time is up, at step {self.state.step:,} of {self.last_step:,}. The settings of "
                f"this run and stop_after={self.state.step}, in place of minutes, give the same model."
            )
            self.last_step = self.state.step

    def _evaluate(self) -> None:
        state = self.state
        row = {"step": state.step, "seconds": round(state.seconds, 1), "loss": state.loss_sum / state.loss_count}
        state.loss_sum, state.loss_count = 0.0, 0
        if self.validate is not None:
            metrics = self.validate()
            refuse_late_weights(self.variables["model"], self.model.variables)
            self.tensorboard.write(state.step, "validation", metrics)
            row.update(metrics)
        state.curve.append(row)
        best = state.best()
        if self.validate is not None and (best is None or row[BEST_STEP_METRIC] > best[BEST_STEP_METRIC]):
            state.best_step = state.step
        since_best = sum(row["step"] > state.best_step for row in state.curve)
        has_stalled = bool(state.best_step) and 0 < self.settings.patience <= since_best
        state.finished = state.step == self.last_step or has_stalled
        if self.team.is_chief:
            curve = pd.DataFrame(state.curve).to_csv(index=False, float_format="%.6g", lineterminator="\n")
            files.write_text(self.folder / "curve.csv", curve)
            if state.finished and plots.is_available():
                plots.plot_curve(self.folder / "curve.png", state.curve, self.watch.title)
        values = ", ".join(f"{name} {row[name]:.4f}" for name in ("loss", "hr@10", BEST_STEP_METRIC) if name in row)
        self.progress.say(f"{self.watch.title}: step {state.step:,}, {state.seconds / 60:.1f} minutes: {values}")


class Pace:
    """Chooses how many steps a call takes: `fixed`, or about CALL_SECONDS long; at most `max_steps`.

    The number decides when results are read, and no bit of them.
    """

    def __init__(self, max_steps: int, fixed_count: int = 0) -> None:
        self.max_steps, self.fixed_count = max_steps, fixed_count
        self.count = min(fixed_count or 1, max_steps)
        self._is_compiled = False

    def note(self, count: int, seconds: float) -> None:
        """Notes how long a call of `count` steps took. The first one compiles, so its time says nothing."""
        new_count = int(CALL_SECONDS * count / max(seconds, 1e-6))
        if self._is_compiled and not self.fixed_count and not self.count / 1.5 <= new_count <= self.count * 1.5:
            self.count = min(max(new_count, 1), self.max_steps)
        self._is_compiled = True


def save_counted_model(model: Any, folder: Path) -> None:
    """Saves a model that is fitted by counting (no training steps) as a finished training."""
    files.make_folder(folder)
    checkpoints.Series(folder).save({"model": model.variables}, 0, asdict(State(finished=True)))


def has_begun(folder: Path) -> bool:
    """Returns whether a training has a checkpoint in the folder, from which it resumes."""
    return bool(checkpoints.Series(folder).paths())


def read_state(folder: Path) -> State:
    """Returns the state of a finished training. Raises UserError if the training in `folder` has not finished."""
    return State(**_read_header(folder)["state"])


def read_shapes(folder: Path) -> list[list[int]]:
    """Returns the shapes of the variables of a trained model. Raises UserError if its training has not finished."""
    return [shape for name, shape in _read_header(folder)["shapes"].items() if name.startswith("model/")]


def _read_header(folder: Path) -> dict[str, Any]:
    header = checkpoints.Series(folder).read_header()
    if header is None or not header["state"].get("finished"):
        raise UserError(f"{folder}: no finished training; run with --mode=train first")
    return header


def restore_best(model: Any, folder: Path, state: State) -> None:
    """Loads the best weights of a training. Raises UserError if their file is damaged or from another training."""
    try:
        step = checkpoints.restore(folder / BEST, {"model": model.variables})["step"]
    except CorruptFileError as error:
        raise UserError(f"{error}; delete {checkpoints.name_repeated(folder)} to train again") from error
    if step != state.best_step:
        raise UserError(
            f"{folder / BEST}: is from step {step}, but the best step was {state.best_step}; delete "
            f"{checkpoints.name_repeated(folder)} to train again"
        )


def load_weights(model: Any, folder: Path) -> None:
    """Loads the weights of a finished training: the best ones if there was validation, else the last.

    Raises UserError if the training has not finished or belongs to another model.
    """
    state = read_state(folder)
    if state.best_step and state.best_step != state.step:
        restore_best(model, folder, state)
    else:
        checkpoints.Series(folder).restore({"model": model.variables})
