"""The training loop of all models: step, measurements, checkpoints, resume, early stopping, TensorBoard."""

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import keras
import tensorflow as tf

from bert4rec_tf.config.run import TrainingSettings
from bert4rec_tf.foundation import files, plots
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.npz import CorruptFileError
from bert4rec_tf.foundation.progress import Progress
from bert4rec_tf.foundation.signals import interrupts_wait
from bert4rec_tf.models.recommender import Recommender
from bert4rec_tf.training import checkpoints
from bert4rec_tf.training.optimizer import optimizer_of
from bert4rec_tf.training.steps import make_step
from bert4rec_tf.training.tensorboard import Scalars

CHOSEN_BY = "ndcg@10"
"""The validation metric that decides which step is the best."""

CHECKPOINT_SECONDS = 120.0
BEST = "best.npz"


@dataclass
class State:
    """Where a training is: everything beside the variables that it needs to go on.

    Attributes:
        step: steps done.
        seconds: time spent so far, of all sittings.
        best_step: the step whose validation metric is the highest; 0 before the first measurement.
        curve: one row per measurement: step, seconds, loss (mean since the last one) and the metrics.
        finished: whether the last step was reached or training stopped early.
        loss_sum, loss_count: the training loss since the last measurement.
    """

    step: int = 0
    seconds: float = 0.0
    best_step: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)
    finished: bool = False
    loss_sum: float = 0.0
    loss_count: int = 0

    def best(self) -> dict[str, float] | None:
        """Returns the row of the curve with the best metric."""
        return next((row for row in self.curve if row["step"] == self.best_step), None)


class Trainer:
    """Trains one model in one folder, and goes on where it was stopped.

    Args:
        model: what to train.
        batches: number of the first step -> training batches from it on, without end.
        settings: optimizer, schedule, measurements.
        folder: for checkpoints, the curve and TensorBoard's files.
        last_step: where to stop, at or before `settings.steps` at which the rate is 0.
        validate: measures the model on the validation item; None where that is trained on.
        title: shown with the progress.
        silent: show nothing.
        checkpoint_seconds: the most time that a killed training loses.
        strategy: the devices that share each batch, under whose scope the model was made; None for one.
        watch: called with each row of the curve once it is measured, and first with those of earlier sittings. What it
            raises ends the training, which can go on from the last checkpoint.
        initialise: changes the model's weights where the training begins; not called where one goes on.
    """

    def __init__(
        self,
        model: Recommender,
        batches: Callable[[int], tf.data.Dataset],
        settings: TrainingSettings,
        folder: Path,
        last_step: int | None = None,
        validate: Callable[[], dict[str, float]] | None = None,
        title: str = "training",
        silent: bool = False,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        strategy: tf.distribute.Strategy | None = None,
        watch: Callable[[dict[str, float]], None] | None = None,
        initialise: Callable[[], None] | None = None,
    ) -> None:
        self.model = model
        self.batches = batches
        self.settings = settings
        self.folder = folder
        self.last_step = last_step or settings.steps
        self.validate = validate
        self.title = title
        self.silent = silent
        self.checkpoint_seconds = checkpoint_seconds
        self.strategy = strategy
        self.watch = watch or (lambda row: None)
        self.initialise = initialise
        self.state = State()
        with strategy.scope() if strategy else contextlib.nullcontext():
            self.optimizer = optimizer_of(settings)
            self.optimizer.build(model.trainable_variables)
        self._variables = {"model": model.variables, "optimizer": self.optimizer.variables}
        self._checkpoints = checkpoints.Series(folder)

    def run(self) -> State:
        """Trains to the end, or goes on to it, and leaves the best (without `validate` the last) weights in the model.

        Raises:
            UserError: where the loss is no number any more.
        """
        files.make_folder(self.folder)
        saved = self._checkpoints.restore(self._variables)
        self.state = State(**saved) if saved else State()
        if not saved and self.initialise is not None:
            self.initialise()
        for row in self.state.curve:
            self.watch(row)
        if not self.state.finished:
            self._loop()
        if self.validate is not None:
            restore_best(self.model, self.folder, self.state)
        return self.state

    def _loop(self) -> None:
        batches = self.batches(self.state.step)
        step = make_step(self.model, self.optimizer, self.settings, self.strategy, batches.element_spec)
        progress = Progress(self.title, self.last_step, self.state.step, self.settings.batch_size, silent=self.silent)
        scalars = Scalars(self.folder / "tensorboard", self.state.step, self.settings.clip_norm)
        clock = _Clock(self.state.seconds)
        with contextlib.closing(progress), contextlib.closing(scalars), interrupts_wait() as interrupted:
            for batch in batches:
                made = {name: float(value) for name, value in step(batch).items()}
                self._count(made)
                scalars.add(self.state.step, made)
                progress.advance(loss=self.state.loss_sum / self.state.loss_count, rate=made["learning_rate"])
                self.state.seconds = clock.seconds()
                is_due = self._is_due()
                if is_due:
                    self._measure(progress, scalars)
                    self.state.seconds = clock.seconds()
                if is_due or clock.since_saved() >= self.checkpoint_seconds or interrupted():
                    self._checkpoints.save(self._variables, self.state.step, asdict(self.state))
                    scalars.flush()
                    clock.saved()
                if interrupted():
                    raise KeyboardInterrupt
                if self.state.finished:
                    return

    def _is_due(self) -> bool:
        return self.state.step == self.last_step or self.state.step % self.settings.evaluate_every == 0

    def _count(self, made: dict[str, float]) -> None:
        self.state.step += 1
        if not math.isfinite(made["loss"] + made["gradient_norm"]):
            raise UserError(
                f"The loss is {made['loss']} and the gradient's norm {made['gradient_norm']} at step "
                f"{self.state.step}: a lower --learning_rate or a longer --warmup_steps usually helps"
            )
        self.state.loss_sum += made["loss"]
        self.state.loss_count += 1

    def _measure(self, progress: Progress, scalars: Scalars) -> None:
        state = self.state
        row = {"step": state.step, "seconds": round(state.seconds, 1), "loss": state.loss_sum / state.loss_count}
        state.loss_sum, state.loss_count = 0.0, 0
        if self.validate is not None:
            measured = self.validate()
            scalars.add_metrics(state.step, measured)
            row.update(measured)
        state.curve.append(row)
        best = state.best()
        if self.validate is not None and (best is None or row[CHOSEN_BY] > best[CHOSEN_BY]):
            state.best_step = state.step
            checkpoints.save(self.folder / BEST, self._variables, asdict(state))
        state.finished = state.step == self.last_step or self._should_stop()
        write_curve(self.folder / "curve.csv", state.curve)
        if state.finished and plots.available():
            plots.plot_curve(self.folder / "curve.png", state.curve, self.title)
        shown = ", ".join(f"{name} {row[name]:.4f}" for name in ("loss", "hr@10", CHOSEN_BY) if name in row)
        progress.say(f"{self.title}: step {state.step:,}, {state.seconds / 60:.1f} minutes: {shown}")
        self.watch(row)

    def _should_stop(self) -> bool:
        if not self.settings.patience or not self.state.best_step:
            return False
        since = [row for row in self.state.curve if row["step"] > self.state.best_step]
        return len(since) >= self.settings.patience


class _Clock:
    """Counts the seconds of all sittings, and those since the last checkpoint."""

    def __init__(self, spent: float) -> None:
        self._spent = spent
        self._begin = self._saved = time.monotonic()

    def seconds(self) -> float:
        return self._spent + time.monotonic() - self._begin

    def since_saved(self) -> float:
        return time.monotonic() - self._saved

    def saved(self) -> None:
        self._saved = time.monotonic()


def write_curve(path: Path, curve: list[dict[str, float]]) -> None:
    """Writes the measurements as comma-separated lines under a header."""
    names = list(curve[0])
    lines = [",".join(names), *(",".join(f"{row[name]:.6g}" for name in names) for row in curve)]
    files.write_text(path, "\n".join(lines) + "\n")


def keep_counted(model: Recommender, folder: Path) -> None:
    """Keeps a model that learns by counting alone as a finished training."""
    files.make_folder(folder)
    checkpoints.Series(folder).save({"model": model.variables}, 0, asdict(State(finished=True)))


def read_state(folder: Path) -> State:
    """Returns the state of a finished training. Raises UserError where the training in `folder` has not finished."""
    saved = checkpoints.Series(folder).read_state()
    if saved is None or not saved["finished"]:
        raise UserError(f"{folder}: no finished training; run with --mode=train first")
    return State(**saved)


def restore_best(model: keras.Model, folder: Path, state: State) -> None:
    """Puts the best weights of a training into a model. Raises UserError where the file is damaged or another's."""
    try:
        found = checkpoints.restore(folder / BEST, {"model": model.variables})["step"]
    except CorruptFileError as error:
        raise UserError(f"{error}; delete {folder} to train again") from error
    if found != state.best_step:
        raise UserError(
            f"{folder / BEST}: is of step {found}, but the best was {state.best_step}; delete {folder} to train again"
        )


def load_weights(model: keras.Model, folder: Path) -> None:
    """Puts a finished training's weights into a model: the best where there was validation, else the last.

    Raises:
        UserError: where the training has not finished, or was another model's.
    """
    state = read_state(folder)
    if state.best_step:
        restore_best(model, folder, state)
    else:
        checkpoints.Series(folder).restore({"model": model.variables})
