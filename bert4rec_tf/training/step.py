"""One training step: the loss, its gradients, their global norm, clipping, the update. There is no other.

Our own loop takes it for one device, for replicas and for workers on several machines; Keras' `fit` takes it too. The
model says what its loss is (`training_loss`); `nn.layouts` says how the batch lies in memory.
"""

import contextlib
import functools
import math
from collections.abc import Collection, Iterator
from typing import Any

import keras
import tensorflow as tf

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.graphs import tf_function
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.nn import layouts

LARGE_VARIABLE = 1 << 20
"""Updates of variables with at least this many elements are compiled with XLA, also where the step is not."""

SEED_STATE = "seed_generator_state"
"""Keras' name for the state of a random generator: its seed and a counter."""

SEED_STRIDE = 1_000_000_007
"""Difference between the seeds of two replicas. Keras draws the layers' seeds from 1 to 10^9."""


def take_step(
    model: Any, optimizer: keras.optimizers.Optimizer, batch: Batch, clip_norm: float | None = None
) -> dict[str, Tensor]:
    """Updates the weights by one batch, and returns `loss`, `gradient_norm` (before clipping) and `learning_rate`, [].

    Call it in a replica of a strategy; TensorFlow's default strategy has one. Each replica gets its part of a batch.
    The replicas' losses and gradients are summed, and clipped only then, so the step is that of one device with the
    whole batch.

    Args:
        model: with `training_loss`, `loss_weight` and `trainable_variables`.
        optimizer: already built on the model's variables.
        batch: what `training_loss` takes.
        clip_norm: the global norm at which gradients are clipped; 0 for never. None leaves clipping, summing and the
            update to the optimizer's own `apply_gradients`, and returns the `loss` alone, as Keras' `fit` needs it.
    """
    context = tf.distribute.get_replica_context()
    scale = optimizer.scale_loss(1.0)
    compute = functools.partial(compute_gradients, model, tables=getattr(optimizer, "tables", ()))
    if context.num_replicas_in_sync > 1:
        # A function of its own: TensorFlow would optimize it otherwise where one graph holds it once and where it holds
        # it for two devices, and two workers would not give the bits of two devices.
        compute = tf_function(compute, jit_compile=layouts.is_fixed())
    with _shift_seeds(model, context):
        loss, gradients = compute(batch, share=scale * _compute_share(model, batch, context))
    if clip_norm is None:
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return {"loss": loss / scale}
    rate = tf.convert_to_tensor(optimizer.learning_rate)
    if context.num_replicas_in_sync > 1:
        loss, *gradients = sum_over_replicas([loss, *gradients])
        gradients = [sum_repeated_rows(gradient) for gradient in gradients]
    gradients, norm = clip_gradients(gradients, clip_norm)
    context.merge_call(functools.partial(_apply_gradients, optimizer, model.trainable_variables), (gradients, rate))
    return {"loss": loss, "gradient_norm": norm, "learning_rate": rate}


def compute_gradients(
    model: Any, batch: Batch, share: Tensor | float = 1.0, tables: Collection[str] = ()
) -> tuple[Tensor, list[Tensor]]:
    """Returns `share` x the training loss, summed over its networks, and the gradients.

    These are slices, in which no row is repeated, for the variables with the paths `tables`, and else dense.

    Raises UserError if the loss is no number, reads the whole of one of the tables, makes a weight or leaves one out;
    without weights too.
    """
    variables = [*model.trainable_variables]
    with tf.GradientTape() as tape:
        loss = model.training_loss(batch)
        shape = getattr(loss, "shape", None)
        if shape is None or (tf.TensorShape(shape).rank or 0) > bool(getattr(model, "networks", ())):
            received = f"shape {shape}" if shape is not None else repr(loss)
            raise UserError(f"`training_loss` must return one number, a tensor of the shape (). Received: {received}")
        loss = tf.reduce_sum(share * loss)
    refuse_late_weights(variables, model.trainable_variables)
    if not model.trainable_variables:
        raise UserError("`model` must have weights to train. Received: a model whose weights are all frozen")
    gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    for index, (variable, gradient) in enumerate(zip(model.trainable_variables, gradients, strict=True)):
        if gradient is None:
            raise UserError(
                "`training_loss` must read every weight that is trained; set `trainable` of others to False. "
                f"Received: a loss that does not read {variable.path}"
            )
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


def refuse_late_weights(first_variables: Collection[keras.Variable], variables: Collection[keras.Variable]) -> None:
    """Raises UserError if some variables of a model are not among those that it had at first."""
    first_ids = {id(variable) for variable in first_variables}
    for variable in variables:
        if id(variable) not in first_ids:
            raise UserError(
                "`make_variables` must make every weight, and call `build` of every layer that has some. "
                f"Received: {variable.path}, which came later"
            )


def sum_repeated_rows(gradient: Tensor) -> Tensor:
    """Returns the gradient; if it is `tf.IndexedSlices`, with each row once: repeated rows are summed.

    There are as many slices as before. Those that are left over are zeros of row 0, which change nothing.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    order = tf.argsort(gradient.indices, stable=True)
    rows = tf.gather(gradient.indices, order)
    is_new = tf.concat([[False], rows[1:] != rows[:-1]], axis=0)[: tf.size(rows)]
    places, count = tf.cumsum(tf.cast(is_new, tf.int32)), tf.size(rows)
    values = tf.math.unsorted_segment_sum(tf.gather(gradient.values, order), places, count)
    rows = tf.maximum(tf.math.unsorted_segment_max(rows, places, count), 0)
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def clip_gradients(gradients: list[Tensor], clip_norm: float) -> tuple[list[Tensor], Tensor]:
    """Returns the gradients, scaled to a global norm of at most `clip_norm` (0: not scaled), and their norm before, [].

    A tied table has one gradient, the sum of its parts. TensorFlow 1 took the norm of the parts before they were added;
    see docs/fidelity.md.
    """
    norm = tf.linalg.global_norm(gradients)
    if clip_norm:
        scale = tf.where(norm > clip_norm, clip_norm / norm, 1.0)
        gradients = [tf.math.scalar_mul(scale, gradient) for gradient in gradients]
    return gradients, norm


def _apply_gradients(
    optimizer: keras.optimizers.Optimizer,
    variables: list[keras.Variable],
    strategy: tf.distribute.Strategy,
    gradients: list[Tensor],
    rate: Tensor,
) -> None:
    """Updates every copy of the variables. Keras' own `apply` would sum the gradients of the replicas again."""
    is_alone = strategy.num_replicas_in_sync == 1

    def update(copy: tf.Variable, gradient: Tensor, rate: Tensor) -> None:
        optimizer.update_step(gradient, copy, rate)

    for gradient, variable in zip(gradients, variables, strict=True):
        # XLA reads and writes a large table once; without it, a dozen operations each do.
        is_large = math.prod(variable.shape) >= LARGE_VARIABLE and not isinstance(gradient, tf.IndexedSlices)
        is_large = is_large and is_alone and not layouts.is_fixed()  # a FIXED step is compiled as a whole
        function = tf_function(update, jit_compile=True) if is_large else update
        strategy.extended.update(variable.value, function, args=(gradient, rate), group=False)
    optimizer.iterations.assign_add(1)


def _compute_share(model: Any, batch: Batch, context: Any) -> Tensor | float:
    """Returns the share of this replica's part in the weight of the whole batch."""
    if context.num_replicas_in_sync == 1:
        return 1.0
    weight = model.loss_weight(batch)
    (total,) = sum_over_replicas([weight])
    return weight / total


def sum_over_replicas(values: list[Tensor]) -> list[Tensor]:
    """Returns the sum over all replicas of each tensor. Call it in a replica."""
    values = [tf.identity(value) for value in values]  # puts the replica's arguments on its device
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)


@contextlib.contextmanager
def _shift_seeds(model: Any, context: Any) -> Iterator[None]:
    """Gives each replica its own random numbers inside the block. Replica 0 keeps those of a single device.

    Every replica has a copy of the generators' states. After the block the copies are equal again, so a checkpoint has
    only one.
    """
    states: list[tf.Variable] = []
    if context.num_replicas_in_sync > 1:
        states = [variable.value for variable in model.non_trainable_variables if variable.name == SEED_STATE]
    shift = tf.stack([tf.cast(context.replica_id_in_sync_group, tf.int64) * SEED_STRIDE, 0])
    for state in states:
        state.assign_add(shift)
    yield
    for state in states:
        state.assign_sub(shift)
