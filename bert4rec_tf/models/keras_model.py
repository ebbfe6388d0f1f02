"""What Keras does with a model: it calls, trains, measures, saves and exports it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert4rec_tf.data.feature_values import Features
from bert4rec_tf.foundation import devices, npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.graphs import tf_function
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.nn import layouts
from bert4rec_tf.training.step import take_step


class KerasModel(keras.Model):
    """The methods of `keras.Model` by those of `Recommender`, which says what the attributes mean."""

    needs_users: bool
    examples: str | None
    features: dict[str, Features]
    _lacks_features: bool

    def call(self, batch: Batch | Tensor, training: bool | None = None, return_vectors: bool = False) -> Tensor:
        """Scores all items, as `score` does, or returns the `user_vectors`. With `training`, dropout acts.

        `batch`: as for `score`, or `items` alone. Without `lengths`, zeros are padding, wherever they are.
        """
        batch = dict(batch) if isinstance(batch, Mapping) else {"items": batch}
        batch = {name: tf.cast(column, tf.int32) for name, column in batch.items()}
        if type(self).needs_users and "users" not in batch:
            raise UserError(f'{type(self).__name__} needs {{"items": ..., "users": ...}}. Received: no users')
        if "lengths" not in batch:
            order = tf.argsort(tf.cast(batch["items"] == 0, tf.int32), stable=True)
            batch["items"] = tf.gather(batch["items"], order, batch_dims=1)
            batch["lengths"] = tf.math.count_nonzero(batch["items"], axis=1, dtype=tf.int32)
        vectors = self.user_vectors(batch, bool(training))
        return vectors if return_vectors else self.score_vectors(vectors)

    def compile(
        self, optimizer: Any = "adam", loss: Any = None, jit_compile: bool | str = "auto", **options: Any
    ) -> None:
        """Prepares `fit`, which minimises `training_loss` on one device.

        `jit_compile` lays out batches in fixed places and compiles the step with XLA; "auto" does where there is a GPU.
        With `steps_per_execution` too, so many steps are one program.

        Raises UserError for a `loss`, and for several devices.
        """
        if loss is not None:
            raise UserError(
                f"`loss` must be left out: {type(self).__name__} has its own, `training_loss`. Received: loss={loss}"
            )
        if self.distribute_strategy.num_replicas_in_sync > 1:
            raise UserError("`fit` of Keras trains on one device; use `bert4rec_tf.fit(..., replicas=2)` for several")
        if jit_compile == "auto":
            jit_compile = devices.has_accelerator()
        super().compile(optimizer, jit_compile=jit_compile, **options)
        self.optimizer.build(self.trainable_variables)  # a graph that makes variables is traced twice

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles a loaded model as the saved one was."""
        self.compile(**keras.saving.deserialize_keras_object(config))

    def train_step(self, data: Any) -> dict[str, Tensor]:
        """Updates the weights by one batch of the kind that `training_loss` takes. Returns the mean `loss`."""
        batch, targets, weights = keras.utils.unpack_x_y_sample_weight(data)
        if targets is not None or weights is not None:
            raise UserError("`fit` must get batches of `bert4rec_tf.datasets` alone. Received: targets or weights, too")
        self._check_columns("fit", batch)
        with layouts.use_layout(layouts.FIXED if self.jit_compile else layouts.BY_LENGTH):
            return self._track_loss(batch, take_step(self, self.optimizer, batch)["loss"])

    def make_train_function(self, force: bool = False) -> None:
        """Makes what `fit` calls. With `jit_compile` and `steps_per_execution`, it takes these steps in one program.

        That needs batches of one shape; Keras' own function, one program for each step, takes others.
        """
        if self.train_function is not None and not force:
            return
        super().make_train_function(force)
        if self.jit_compile and self.steps_per_execution > 1 and type(self).train_step is KerasModel.train_step:
            self.train_function = self._join_steps(self.train_function)

    def _join_steps(self, otherwise: Callable) -> Callable:
        number = self.steps_per_execution

        @tf_function(jit_compile=True)
        def take_steps(batches: Batch, count: Tensor) -> dict[str, Tensor]:
            def take_next(index: Tensor, _: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
                return index + 1, self.train_step({name: column[index] for name, column in batches.items()})

            begin = (tf.constant(0), {"loss": tf.zeros([])})
            return tf.while_loop(lambda index, _: index < count, take_next, begin)[1]

        @tf_function
        def read_and_take_steps(iterator: tf.data.Iterator) -> tuple[Tensor, dict[str, Tensor]]:
            arrays = {
                name: tf.TensorArray(spec.dtype, number, element_shape=spec.shape)
                for name, spec in iterator.element_spec.items()
            }

            def read_next(count: Tensor, arrays: dict[str, tf.TensorArray], _: Tensor) -> tuple[Any, Any, Any]:
                batch = iterator.get_next_as_optional()
                has_value = batch.has_value()

                def write() -> dict[str, tf.TensorArray]:
                    return {name: arrays[name].write(count, column) for name, column in batch.get_value().items()}

                arrays = tf.cond(has_value, write, lambda: arrays)
                return count + tf.cast(has_value, tf.int32), arrays, has_value

            begin = (tf.constant(0), arrays, tf.constant(True))
            count, arrays, _ = tf.while_loop(lambda count, _, more: more & (count < number), read_next, begin)
            return count, take_steps({name: array.stack() for name, array in arrays.items()}, count)

        def function(iterator: Any) -> dict[str, Tensor]:
            spec = getattr(iterator, "element_spec", None)
            is_fixed = isinstance(spec, Mapping) and all(column.shape.is_fully_defined() for column in spec.values())
            if not (is_fixed and isinstance(iterator, tf.data.Iterator)):
                return otherwise(iterator)
            count, logs = read_and_take_steps(iterator)
            if not count:
                raise StopIteration
            return logs

        return function

    def make_test_function(self, force: bool = False) -> None:
        self._make_uncompiled(super().make_test_function, force)

    def make_predict_function(self, force: bool = False) -> None:
        self._make_uncompiled(super().make_predict_function, force)

    def _make_uncompiled(self, make: Callable[[bool], None], force: bool) -> None:
        """Makes a function for batches of any length, which XLA would compile again for each length."""
        compiled, self.jit_compile = self.jit_compile, False
        make(force)
        self.jit_compile = compiled

    def test_step(self, data: Any) -> dict[str, Tensor]:
        """Returns the mean `loss` of batches like those of `fit`; of histories with next items, the compiled metrics.

        These are pairs of what `score` takes and the item that comes next, int [b].
        """
        batch, targets, weights = keras.utils.unpack_x_y_sample_weight(data)
        if targets is None:
            self._check_columns("evaluate", batch)
            return self._track_loss(batch, self.training_loss(batch, training=False))
        if len(self.metrics) == 1:
            raise UserError("`metrics` must be given to `compile` to measure next items. Received: metrics=None")
        scores = tf.pad(self(batch, training=False), [[0, 0], [1, 0]])  # column i for item i
        results = self.compute_metrics(batch, targets, scores, weights)
        return {name: value for name, value in results.items() if name != "loss"}

    def _check_columns(self, method: str, batch: Any) -> None:
        columns = sorted(batch) if isinstance(batch, Mapping) else ["an array"]
        needed = "mask_targets" if self.examples == "masked" else "targets"
        if self.examples is not None and needed not in columns:
            raise UserError(
                f"`{method}` must get batches of `bert4rec_tf.datasets.training_batches` for this model, with "
                f"`{needed}`. Received: {', '.join(columns)}"
            )

    def _track_loss(self, batch: Batch, loss: Tensor) -> dict[str, Tensor]:
        tracker = next(metric for metric in self.metrics if metric.name == "loss")
        with tf.control_dependencies([loss]):  # else rows would be counted where the data have ended
            rows = tf.identity(tf.shape(batch["items"])[0])
        tracker.update_state(loss, sample_weight=rows)
        return {"loss": tracker.result()}

    def compute_metrics(self, x: Any, y: Tensor | None, y_pred: Tensor, sample_weight: Any = None) -> dict[str, Tensor]:
        """Updates the compiled metrics and returns them; without `y`, there is nothing to measure."""
        return {} if y is None else super().compute_metrics(x, y, y_pred, sample_weight)

    def get_metrics_result(self) -> dict[str, Tensor]:
        """Returns all metrics; none while the compiled ones have measured nothing, where Keras would fail."""
        has_measured = all(getattr(metric, "built", True) for metric in self.metrics)
        return super().get_metrics_result() if has_measured else {}

    def predict(self, x: Any, *args: Any, **options: Any) -> np.ndarray:
        """Returns what `call` does, batch by batch. Raises UserError for no rows, where Keras would not say why."""
        if any(0 in getattr(column, "shape", ())[:1] for column in keras.tree.flatten(x)):
            raise UserError("`x` must have at least one row. Received: no rows")
        return super().predict(x, *args, **options)

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
        """Writes the features into a Keras file. Raises UserError if the model was made without them."""
        self.check_features()
        for name, features in self.features.items():
            npz.write(Path(folder) / f"{name}.npz", features.to_arrays())

    def check_features(self) -> None:
        """Raises UserError if only the sizes of the features are known, as after `from_config`."""
        if self._lacks_features:
            raise UserError("`features` are not part of the configuration; load the model's Keras file, which has them")

    def load_assets(self, folder: str) -> None:
        """Reads the features from a Keras file."""
        self.features = {name: Features.from_arrays(npz.read(Path(folder) / f"{name}.npz")) for name in self.features}
        self._lacks_features = False
