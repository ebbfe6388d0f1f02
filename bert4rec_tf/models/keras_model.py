"""What Keras does with a model: it calls, trains, measures, saves and exports it."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from bert4rec_tf.data.feature_values import Features
from bert4rec_tf.foundation import devices, npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models.batch_checks import UnknownItems, check_arrays, check_batch, check_targets
from bert4rec_tf.models.joined_steps import join_steps
from bert4rec_tf.models.raw_ids import ModelIds
from bert4rec_tf.models.rows import report_lost_rows
from bert4rec_tf.nn import layouts
from bert4rec_tf.training.step import sum_over_replicas, take_step

PADDING = {"paddings": [[0, 0], [1, 0]], "constant_values": -1e9}
"""Adds a column of low scores before those of the items: for losses and metrics, column i is item i."""


PROBABILITY_LOSSES = (
    *(keras.losses.sparse_categorical_crossentropy, keras.losses.categorical_crossentropy),
    *(keras.losses.binary_crossentropy, keras.losses.kl_divergence),
)


def pack_rows(batch: Batch) -> dict[str, Tensor]:
    """Returns a batch whose `items [b, n]` are without zeros between them, and their `lengths [b]`.

    Without `lengths` every column counts; with them, those after a row's length do not.
    """
    items = tf.convert_to_tensor(batch["items"])
    if "lengths" in batch:
        items = tf.where(tf.range(tf.shape(items)[1])[None, :] < batch["lengths"][:, None], items, 0)
    order = tf.argsort(tf.cast(items == 0, tf.int32), stable=True)
    items, lengths = tf.gather(items, order, batch_dims=1), tf.math.count_nonzero(items, axis=1, dtype=tf.int32)
    return {**batch, "items": items, "lengths": lengths}


def _refuse_weights_alone(y: Any, sample_weight: Any) -> None:
    if y is None and sample_weight is not None:
        raise UserError("`sample_weight` must come with `y`, the next items. Received: y=None")


class KerasModel(keras.Model):
    """The methods of `keras.Model` by those of `Recommender`, which says what the attributes mean."""

    needs_users: bool
    examples: ClassVar[str | None]
    features: dict[str, Features]
    ids: ModelIds | None
    jit_compile: bool
    train_function: Any
    _lacks_features: bool

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._unknown = UnknownItems()

    def __call__(self, batch: Batch | Tensor, *args: Any, **options: Any) -> Tensor:
        """Does what `call` does, which says what is wrong in one line."""
        batch, _ = check_arrays(self, batch, to_train=False, may_be_empty=True)
        return super().__call__(batch, *args, **options)

    def call(self, batch: Batch | Tensor, training: bool | None = None, return_vectors: bool = False) -> Tensor:
        """Scores all items, as `score` does, or returns the `user_vectors`. With `training`, dropout acts.

        `batch`: as for `score`, or `items` alone. Zeros are padding or unknown items, wherever they are. Raises
        UserError as `check_batch` does.
        """
        batch, _ = check_batch(self, batch, to_train=False)
        vectors = self.user_vectors(pack_rows(batch), bool(training))
        return vectors if return_vectors else self.score_vectors(vectors)

    def compile(self, optimizer: Any = "adam", *args: Any, jit_compile: bool | str = "auto", **options: Any) -> None:
        """Prepares `fit`, which minimises `training_loss`; with a `loss`, that of histories and their next items.

        `jit_compile` lays out batches in fixed places and compiles the step with XLA; "auto" does where there is a GPU.
        With `steps_per_execution` too, so many steps are one program. Steps on several devices are not compiled.
        Raises UserError for a loss of Keras that would read the scores, which are no probabilities, as such.
        """
        _refuse_probabilities(args[0] if args else options.get("loss"))
        self._compile_any(optimizer, *args, jit_compile=jit_compile, **options)

    def _compile_any(self, optimizer: Any, *args: Any, jit_compile: bool | str, **options: Any) -> None:
        """Does what `compile` does, with any loss."""
        if jit_compile == "auto":
            jit_compile = devices.has_accelerator()
        self._compile_loss = self._compile_metrics = None  # Keras would keep those of an earlier `compile`
        jit_compile = jit_compile and self.distribute_strategy.num_replicas_in_sync == 1
        with self.distribute_strategy.scope():
            super().compile(optimizer, *args, jit_compile=jit_compile, **options)
            self.optimizer.build(self.trainable_variables)  # a graph that makes variables is traced twice

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles a loaded model as the saved one was."""
        self._compile_any(**{"jit_compile": "auto", **keras.saving.deserialize_keras_object(config)})

    def fit(self, x: Any = None, y: Any = None, *args: Any, **options: Any) -> keras.callbacks.History:
        """Trains on batches of the kind that `training_loss` takes; with a `loss`, on histories and next items."""
        if options.get("validation_data") is not None:
            validation = keras.utils.unpack_x_y_sample_weight(options["validation_data"])
            options["validation_data"] = (*check_arrays(self, *validation[:2]), validation[2])
        if options.get("class_weight") is not None and self._compile_loss is None:
            raise UserError("`class_weight` needs a `loss` in `compile`, which takes next items. Received: loss=None")
        _refuse_weights_alone(y, options.get("sample_weight"))
        with self._unknown.report():
            return super().fit(*check_arrays(self, x, y), *args, **options)

    def evaluate(self, x: Any = None, y: Any = None, *args: Any, **options: Any) -> Any:
        """Returns the mean `loss` of batches like those of `fit`; of histories with next items, the metrics too."""
        _refuse_weights_alone(y, options.get("sample_weight"))
        with self._unknown.report():
            return super().evaluate(*check_arrays(self, x, y), *args, **options)

    def predict(self, x: Any, *args: Any, **options: Any) -> np.ndarray:
        """Returns what `call` does, batch by batch."""
        with self._unknown.report():
            return super().predict(check_arrays(self, x, to_train=False)[0], *args, **options)

    @property
    def num_unknown(self) -> int:
        """How many item numbers out of range compiled `fit`, `evaluate` and `predict` have read as unknown items."""
        return self._unknown.read()

    def train_step(self, data: Any) -> dict[str, Tensor]:
        """Updates the weights by one batch, and returns the mean loss."""
        batch, targets, weights = self._check_step(data)
        if targets is not None:
            return super().train_step((batch, targets, weights))
        with layouts.use_layout(layouts.FIXED if self.jit_compile else layouts.BY_LENGTH):
            loss = take_step(self, self.optimizer, batch)["loss"]
        is_alone = self.distribute_strategy.num_replicas_in_sync == 1
        return self._track_loss(batch, loss if is_alone else sum_over_replicas([loss])[0])

    def test_step(self, data: Any) -> dict[str, Tensor]:
        """Returns the mean `loss`, without dropout, of batches like those of `fit`, and of histories with next items.

        Of the latter, `score` what comes next, `weights` count for the metrics and the `loss` of `compile`.
        """
        batch, targets, weights = self._check_step(data)
        if targets is None:
            return self._track_loss(batch, tf.reduce_sum(self.training_loss(batch, training=False)))
        if self._compile_loss is not None:
            return super().test_step((batch, targets, weights))
        if self.examples is not None:
            loss = self.training_loss(self.expect_next_items(pack_rows(batch), targets), training=False)
            self._track_loss(batch, tf.reduce_sum(loss))
        results = self.compute_metrics(batch, targets, self(batch, training=False), weights)
        return {name: value for name, value in results.items() if name != "loss" or self.examples is not None}

    def _check_step(self, data: Any) -> tuple[Batch, Tensor | None, Tensor | None]:
        """Returns the checked batch, the next items [b] or None, and the weights or None, of what a step gets."""
        batch, targets, weights = keras.utils.unpack_x_y_sample_weight(data)
        _refuse_weights_alone(targets, weights)
        batch, num_unknown = check_batch(self, batch, to_train=targets is None)
        targets, num_unknown_targets = check_targets(self, targets)
        return self._unknown.count(batch, num_unknown + num_unknown_targets), targets, weights

    def predict_step(self, data: Any) -> Tensor:
        """Returns what `call` does."""
        batch, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return self(self._unknown.count(*check_batch(self, batch, to_train=False)), training=False)

    def make_train_function(self, force: bool = False) -> None:
        """Makes what `fit` calls. With `jit_compile` and `steps_per_execution`, it takes these steps in one program.

        That needs batches of one shape; Keras' own function, one program for each step, takes others.
        """
        if self.train_function is not None and not force:
            return
        super().make_train_function(force)
        if self.jit_compile and self.steps_per_execution > 1 and type(self).train_step is KerasModel.train_step:
            self.train_function = join_steps(self.train_step, self.steps_per_execution, self.train_function)

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Makes the metrics' variables. Keras would for that read a batch, and cannot if replicas get unequal parts."""
        one_row = {"items": np.ones((1, 1), np.int32), "users": np.zeros(1, np.int32)}
        super()._maybe_symbolic_build(data_batch=(one_row, np.ones(1, np.int32), None))

    def make_test_function(self, force: bool = False) -> None:
        self._make_uncompiled(super().make_test_function, force)

    def make_predict_function(self, force: bool = False) -> None:
        self._make_uncompiled(super().make_predict_function, force)

    def _make_uncompiled(self, make: Callable[[bool], None], force: bool) -> None:
        """Makes a function for batches of any length, which XLA would compile again for each length."""
        jit_compile, self.jit_compile = self.jit_compile, False
        make(force)
        self.jit_compile = jit_compile

    def _track_loss(self, batch: Batch, loss: Tensor) -> dict[str, Tensor]:
        with tf.control_dependencies([loss]):  # else rows would be counted where the data have ended
            rows = tf.identity(tf.shape(next(iter(batch.values())))[0])
        self._loss_tracker.update_state(loss, sample_weight=rows)
        return {"loss": self._loss_tracker.result()}

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *args: Any, **options: Any) -> Tensor:
        """Returns the `loss` of `compile`, which gets scores with a column for padding too."""
        return super().compute_loss(x, y, tf.pad(y_pred, **PADDING), *args, **options)

    def compute_metrics(self, x: Any, y: Tensor | None, y_pred: Tensor, sample_weight: Any = None) -> dict[str, Tensor]:
        """Updates the compiled metrics, which get such scores too, and returns them; nothing without `y`."""
        return {} if y is None else super().compute_metrics(x, y, tf.pad(y_pred, **PADDING), sample_weight)

    def _get_metrics_result_or_logs(self, logs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns what the steps of an epoch measured, over all replicas. Keras would read metrics without values.

        A step of the user's own may return a `loss` that it has not tracked.
        """
        has_measured = all(getattr(metric, "built", True) for metric in self.metrics)
        results = self.get_metrics_result() if has_measured else {}
        if not np.any(self._loss_tracker.count):
            results.pop("loss", None)
        return {name: results.get(name, value) for name, value in logs.items()}

    def save(self, filepath: str | Path, *args: Any, **options: Any) -> None:
        """Writes a Keras file. Raises UserError for the older formats, which have no place for features."""
        if str(filepath).endswith((".h5", ".hdf5")):
            raise UserError(f"`filepath` must end with .keras. Received: filepath={filepath}")
        super().save(filepath, *args, **options)

    def export(self, filepath: str | Path, *args: Any, input_signature: Any = None, **options: Any) -> None:
        """Writes a SavedModel or another format of Keras, whose `serve` takes and returns what `call` does.

        Without an `input_signature` it takes `items [b, n]`, or `items` and `users [b]` if the model needs users.
        """
        items = keras.InputSpec(shape=(None, None), dtype="int32")
        users = keras.InputSpec(shape=(None,), dtype="int32")
        signature = input_signature or [{"items": items, "users": users} if self.needs_users else items]
        super().export(filepath, *args, input_signature=signature, **options)

    def quantize(self, *args: Any, **options: Any) -> None:
        raise UserError(f"`quantize` works for BERT4Rec and SASRec. Received: a model {type(self).__name__}")

    def save_assets(self, folder: str) -> None:
        """Writes the raw ids and the features into a Keras file. Raises UserError for a model made without these."""
        self.check_features()
        contents: dict[str, Features | ModelIds] = {**self.features, **({} if self.ids is None else {"ids": self.ids})}
        for name, content in contents.items():
            npz.write(Path(folder) / f"{name}.npz", content.to_arrays())

    def check_features(self) -> None:
        """Raises UserError if only the sizes of the features are known, as after `from_config`."""
        if self._lacks_features:
            raise UserError("`features` are not part of the configuration; load the model's Keras file, which has them")

    def load_assets(self, folder: str | None) -> None:
        """Reads the raw ids and the features from a Keras file."""
        paths = {path.stem: path for path in Path(folder).glob("*.npz")} if folder else {}
        self.features = {name: Features.from_arrays(npz.read(paths[name])) for name in self.features}
        self._lacks_features = False
        self.ids = ModelIds.from_arrays(npz.read(paths["ids"])) if "ids" in paths else None

    def load_weights(self, filepath: str | Path, skip_mismatch: bool = False, **options: Any) -> None:
        """Does what Keras' method does. If `skip_mismatch` leaves tables as they were, one line says so."""
        with report_lost_rows(filepath, skip_mismatch):
            super().load_weights(filepath, skip_mismatch, **options)


def _refuse_probabilities(loss: Any) -> None:
    """Raises UserError for a loss of Keras that takes probabilities, such as those that texts name."""
    for part in loss if isinstance(loss, (list, tuple)) else [loss]:
        if isinstance(part, (str, dict)):
            with contextlib.suppress(ValueError, KeyError, TypeError):  # Keras says what is no loss
                part = keras.losses.get(part)
        from_logits = getattr(part, "from_logits", None)
        if from_logits is False or (getattr(part, "fn", part) in PROBABILITY_LOSSES and not from_logits):
            raise UserError(
                "`loss` must take scores that are no probabilities, as "
                "keras.losses.SparseCategoricalCrossentropy(from_logits=True) does. Received: one of probabilities"
            )
