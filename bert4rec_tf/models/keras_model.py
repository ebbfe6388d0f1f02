"""What Keras does with a model: it calls, trains, measures, saves and exports it."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert4rec_tf.data.feature_values import Features
from bert4rec_tf.foundation import npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.types import Batch, Tensor


class KerasModel(keras.Model):
    """The methods of `keras.Model` by those of `Recommender`, which says what the attributes mean."""

    needs_users: bool
    examples: str | None
    features: dict[str, Features]
    _lacks_features: bool

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.supports_jit = False  # XLA needs shapes that do not depend on values

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

    def compute_gradients(
        self, batch: Batch, tables: Collection[str] = (), share: Tensor | float = 1.0
    ) -> tuple[Tensor, list[Tensor]]:
        """Returns `share` x the training loss, and its gradients.

        These are slices, in which no row is repeated, for the variables with the paths `tables`, and else dense.

        Raises UserError if the loss reads the whole of one of the tables.
        """
        with tf.GradientTape() as tape:
            loss = share * self.training_loss(batch)
        gradients = tape.gradient(loss, [variable.value for variable in self.trainable_variables])
        for index, (variable, gradient) in enumerate(zip(self.trainable_variables, gradients, strict=True)):
            if variable.path not in tables:
                gradients[index] = tf.convert_to_tensor(gradient)
            elif isinstance(gradient, tf.IndexedSlices):
                gradients[index] = sum_repeated_rows(gradient)
            else:
                raise UserError(
                    "`optimizer` must be adam or adagrad where a step reads a whole table, here "
                    f"{variable.name}; a loss that samples the items reads few rows. Received: rowwise_adagrad"
                )
        return loss, gradients

    def compile(self, optimizer: Any = "adam", loss: Any = None, **options: Any) -> None:
        """Prepares `fit`, which minimises `training_loss` on one device.

        Raises UserError for a `loss`, and for several devices.
        """
        if loss is not None:
            raise UserError(
                f"`loss` must be left out: {type(self).__name__} has its own, `training_loss`. Received: loss={loss}"
            )
        if self.distribute_strategy.num_replicas_in_sync > 1:
            raise UserError("`fit` of Keras trains on one device; use `bert4rec_tf.fit(..., replicas=2)` for several")
        super().compile(optimizer, **options)

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles a loaded model as the saved one was."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def train_step(self, data: Any) -> dict[str, Tensor]:
        """Updates the weights by one batch of the kind that `training_loss` takes. Returns the mean `loss`."""
        batch, targets, weights = keras.utils.unpack_x_y_sample_weight(data)
        if targets is not None or weights is not None:
            raise UserError("`fit` must get batches of `bert4rec_tf.datasets` alone. Received: targets or weights, too")
        self._check_columns("fit", batch)
        scale = self.optimizer.scale_loss(1.0)
        loss, gradients = self.compute_gradients(batch, getattr(self.optimizer, "tables", ()), scale)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return self._track_loss(batch, loss / scale)

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
        tracker.update_state(loss, sample_weight=tf.shape(batch["items"])[0])
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


def sum_repeated_rows(gradient: Tensor) -> Tensor:
    """Returns the gradient, with each row once if it is `tf.IndexedSlices`: repeated rows are summed."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)
