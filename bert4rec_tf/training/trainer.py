"""The training loop of all models: steps, validation, checkpoints, resuming, early stopping, TensorBoard."""

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from bert4rec_tf.config.run_record import TrainingSettings
from bert4rec_tf.foundation import files, plots
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.npz import CorruptFileError
from bert4rec_tf.foundation.progress import Progress
from bert4rec_tf.foundation.signals import delay_interrupts
from bert4rec_tf.foundation.stores import Url
from bert4rec_tf.models.recommender import Recommender
from bert4rec_tf.training import checkpoints
from bert4rec_tf.training.steps import make_optimizer, make_step
from bert4rec_tf.training.tensorboard import TensorBoardWriter
from bert4rec_tf.training.workers import Team

SELECTION_METRIC = "ndcg@10"
"""The validation metric that decides which step is best."""

CHECKPOINT_SECONDS = 120.0
BEST = "best.npz"


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


@dataclass(eq=False)
class Trainer:
    """Trains one model in one folder. If the folder holds a checkpoint, training resumes from it.

    Attributes:
        batches: given the number of steps done, returns the endless training batches from there on.
        settings: optimizer, schedule and how often to evaluate.
        folder: for checkpoints, the curve and TensorBoard's files.
        last_step: where to stop; None for `settings.stop_after`, or else `settings.steps`, at which the learning rate
            is 0.
        validate: returns the metrics on the validation items; None if training includes these items.
        title: shown with the progress.
        silent: whether to show no progress.
        checkpoint_seconds: seconds between checkpoints; a killed training loses at most these.
        strategy: splits each batch over several devices; the model was created under its scope. None for one device.
        watch: called with each new row of the curve; after a resume, first with the earlier rows. If it raises, the
            training ends and can be resumed from the last checkpoint.
        initialise: changes the initial weights of the model. Not called after a resume.
        later_steps: the most steps of the run's later trainings, for the time left that is shown.
        team: the machines that train together. All read the checkpoints in `folder`; the chief alone writes there.
        max_seconds: training also stops after this time, at the end of a step; None for no limit.
    """

    model: Recommender
    batches: Callable[[int], tf.data.Dataset]
    settings: TrainingSettings
    folder: Path
    last_step: int | None = None
    validate: Callable[[], dict[str, float]] | None = None
    title: str = "training"
    silent: bool = False
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    strategy: tf.distribute.Strategy | None = None
    watch: Callable[[dict[str, float]], None] | None = None
    initialise: Callable[[], None] | None = None
    later_steps: int = 0
    team: Team = field(default_factory=Team)
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        self.state = State()
        with self.strategy.scope() if self.strategy else contextlib.nullcontext():
            self.optimizer = make_optimizer(self.settings, self.model)
            self.optimizer.build(self.model.trainable_variables)
        self._end = self.last_step or self.settings.stop_after or self.settings.steps
        self._variables = {"model": self.model.variables, "optimizer": self.optimizer.variables}
        self._checkpoints = checkpoints.Series(self.folder)

    def run(self) -> State:
        """Trains or resumes to the end. The model then has the best weights; without `validate`, the last ones.

        Raises:
            UserError: if the loss or the gradient norm is NaN or infinite, or the checkpoints are damaged.
            KeyboardInterrupt: after Ctrl-C or SIGTERM, once a checkpoint is written.
        """
        with self.team.run_chief_first():
            files.make_folder(self.folder)
        saved = self._checkpoints.restore(self._variables)
        self.state = State(**saved) if saved else State()
        self.team.agree({"checkpoint": f"of step {self.state.step}"})
        if not saved and self.initialise is not None:
            self.initialise()
        for row in self.state.curve if self.watch else ():
            self.watch(row)
        if not self.state.finished:
            with self.team.report_lost_workers(), self.team.watch_others():
                self._loop()
            self.team.agree({"number of steps": str(self.state.step)})
        if self.validate is not None:
            restore_best(self.model, self.folder, self.state)
        return self.state

    def _loop(self) -> None:
        batches = self.batches(self.state.step)
        step = make_step(self.model, self.optimizer, self.settings, self.strategy, batches.element_spec)
        progress = Progress(
            self.title, self._end, self.state.step, self.settings.batch_size, self.silent, later=self.later_steps
        )
        progress.say(f"{self.title}: compiling the graph, which makes the first step slow")
        writes = self.team.is_chief and not isinstance(self.folder, Url)  # A store cannot append to a file.
        place = self.folder / "tensorboard" if writes else None
        tensorboard = TensorBoardWriter(place, self.state.step, self.settings.clip_norm)
        begin = time.monotonic() - self.state.seconds
        saved = time.monotonic()
        with contextlib.closing(progress), contextlib.closing(tensorboard), delay_interrupts() as interrupted:
            for batch in batches:
                stopping = (float(interrupted()),) if self.team.count > 1 else ()
                values = {name: float(value) for name, value in step(batch, *stopping).items()}
                stopped = bool(values.pop("stopping", 0.0))
                self._count_step(values)
                tensorboard.add(self.state.step, values)
                progress.advance(loss=self.state.loss_sum / self.state.loss_count, rate=values["learning_rate"])
                self.state.seconds = time.monotonic() - begin
                if self.max_seconds is not None and self.state.seconds >= self.max_seconds:
                    self._stop_now(progress)
                is_due = self.state.step == self._end or self.state.step % self.settings.evaluate_every == 0
                if is_due:
                    self._evaluate(progress, tensorboard)
                    self.state.seconds = time.monotonic() - begin
                stop = self._needs_stop(stopped, interrupted())
                if is_due or time.monotonic() - saved >= self.checkpoint_seconds or stop:
                    if self.team.is_chief:
                        self._checkpoints.save(self._variables, self.state.step, asdict(self.state))
                    tensorboard.flush()
                    saved = time.monotonic()
                if stop:
                    raise KeyboardInterrupt
                if self.state.finished:
                    return

    def _stop_now(self, progress: Progress) -> None:
        """Makes this step the last one, because `max_seconds` have passed."""
        if self.state.step < self._end:
            progress.say(
                f"{self.title}: time is up, at step {self.state.step:,} of {self._end:,}. The settings of this run and "
                f"stop_after={self.state.step}, in place of minutes, give the same model."
            )
            self._end = self.state.step

    def _needs_stop(self, stopped: bool, interrupted: bool) -> bool:
        """Returns whether to stop. `stopped`: whether any machine asked to in this step. The last step asks anew."""
        if self.team.count == 1:
            return interrupted
        return bool(self.team.sum(np.array([interrupted]))[0]) if self.state.finished else stopped

    def _count_step(self, values: dict[str, float]) -> None:
        self.state.step += 1
        if not math.isfinite(values["loss"] + values["gradient_norm"]):
            raise UserError(
                f"The loss is {values['loss']} and the gradient norm {values['gradient_norm']} at step "
                f"{self.state.step}: a lower --learning_rate or a longer --warmup_steps usually helps"
            )
        self.state.loss_sum += values["loss"]
        self.state.loss_count += 1

    def _evaluate(self, progress: Progress, tensorboard: TensorBoardWriter) -> None:
        state = self.state
        row = {"step": state.step, "seconds": round(state.seconds, 1), "loss": state.loss_sum / state.loss_count}
        state.loss_sum, state.loss_count = 0.0, 0
        if self.validate is not None:
            metrics = self.validate()
            tensorboard.write(state.step, "validation", metrics)
            row.update(metrics)
        state.curve.append(row)
        best = state.best()
        if self.validate is not None and (best is None or row[SELECTION_METRIC] > best[SELECTION_METRIC]):
            state.best_step = state.step
            if self.team.is_chief:
                checkpoints.save(self.folder / BEST, self._variables, asdict(state))
        since_best = sum(row["step"] > state.best_step for row in state.curve)
        has_stalled = bool(state.best_step) and 0 < self.settings.patience <= since_best
        state.finished = state.step == self._end or has_stalled
        if self.team.is_chief:
            write_curve(self.folder / "curve.csv", state.curve)
            if state.finished and plots.is_available():
                plots.plot_curve(self.folder / "curve.png", state.curve, self.title)
        values = ", ".join(f"{name} {row[name]:.4f}" for name in ("loss", "hr@10", SELECTION_METRIC) if name in row)
        progress.say(f"{self.title}: step {state.step:,}, {state.seconds / 60:.1f} minutes: {values}")
        if self.watch is not None:
            self.watch(row)


def write_curve(path: Path, curve: list[dict[str, float]]) -> None:
    rows = [[str(value) if isinstance(value, int) else f"{value:.6g}" for value in row.values()] for row in curve]
    files.write_text(path, "".join(",".join(cells) + "\n" for cells in [list(curve[0]), *rows]))


def save_counted_model(model: Recommender, folder: Path) -> None:
    """Saves a model that is fitted by counting (no training steps) as a finished training."""
    files.make_folder(folder)
    checkpoints.Series(folder).save({"model": model.variables}, 0, asdict(State(finished=True)))


def read_state(folder: Path) -> State:
    """Returns the state of a finished training. Raises UserError if the training in `folder` has not finished."""
    saved = checkpoints.Series(folder).read_state()
    if saved is None or not saved.get("finished"):
        raise UserError(f"{folder}: no finished training; run with --mode=train first")
    return State(**saved)


def restore_best(model: keras.Model, folder: Path, state: State) -> None:
    """Loads the best weights of a training. Raises UserError if their file is damaged or from another training."""
    try:
        step = checkpoints.restore(folder / BEST, {"model": model.variables})["step"]
    except CorruptFileError as error:
        raise UserError(f"{error}; delete {folder} to train again") from error
    if step != state.best_step:
        raise UserError(
            f"{folder / BEST}: is from step {step}, but the best step was {state.best_step}; delete {folder} to train "
            "again"
        )


def load_weights(model: Recommender, folder: Path) -> None:
    """Loads the weights of a finished training: the best ones if there was validation, else the last.

    Raises UserError if the training has not finished or belongs to another model.
    """
    state = read_state(folder)
    if state.best_step:
        restore_best(model, folder, state)
    else:
        checkpoints.Series(folder).restore({"model": model.variables})
