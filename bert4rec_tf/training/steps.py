"""The compiled training step: gradients, clipping, update, on one device or on several that share each batch."""

import contextlib
import math
from collections.abc import Callable, Iterator

import keras
import tensorflow as tf

from bert4rec_tf.config.run import TrainingSettings
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models.recommender import Recommender
from bert4rec_tf.nn import optimizers

Step = Callable[[Batch], dict[str, Tensor]]
Signature = dict[str, tf.TypeSpec]

LARGE = 1 << 20
"""Numbers in a variable from which on compiling its update pays."""

SEED_STATE = "seed_generator_state"
"""Keras' name of the state of a random generator: its seed, and how often it was used."""

SEED_STRIDE = 1_000_000_007
"""By how much the seeds of two replicas differ; Keras draws those of the layers from 1 to 10^9."""


def strategy_for(replicas: int) -> tf.distribute.Strategy | None:
    """Returns the strategy by which devices share each batch: GPUs where there are any, else virtual CPU devices.

    The model and the optimizer must then be made under `strategy.scope()`.

    Args:
        replicas: how many devices.

    Returns:
        None for one.

    Raises:
        UserError: where there are fewer devices. Virtual ones can be made only before TensorFlow starts its devices.
    """
    if replicas == 1:
        return None
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    if kind == "CPU":
        _make_virtual_cpus(replicas)
    devices = tf.config.list_logical_devices(kind)
    if replicas > len(devices):
        raise UserError(
            f"`replicas` must be at most {len(devices)}, the devices there are. Received: replicas={replicas}"
        )
    # TensorFlow's usual way of summing over CPU devices is kept for good, and allows no other number of them later.
    summing = tf.distribute.ReductionToOneDevice() if kind == "CPU" else None
    return tf.distribute.MirroredStrategy([device.name for device in devices[:replicas]], summing)


def _make_virtual_cpus(number: int) -> None:
    processor = tf.config.list_physical_devices("CPU")[0]
    if len(tf.config.get_logical_device_configuration(processor) or ()) < number:
        with contextlib.suppress(RuntimeError):  # TensorFlow's devices have started: there are as many as there are
            tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * number)


def make_step(
    model: Recommender,
    optimizer: optimizers.BertAdam,
    settings: TrainingSettings,
    strategy: tf.distribute.Strategy | None = None,
    signature: Signature | None = None,
) -> Step:
    """Returns the compiled training step: batch -> loss, gradient norm (before clipping) and learning rate.

    Args:
        model: what to train. Its `static_shapes` becomes `settings.jit_compile`.
        optimizer: already built on the model's variables.
        settings: of which `clip_norm` and `jit_compile` count here. XLA makes other noise of the same seeds.
        strategy: as `strategy_for` makes it, with model and optimizer made under its scope; None for one device. Each
            replica gets a part of the rows of each batch, and the step is that of one device with the whole batch.
        signature: `element_spec` of the batches, for one graph whatever their widths are; None for one of each shape.

    Raises:
        UserError: for batches with fewer rows than there are replicas.
        ValueError: for a model or an optimizer made outside the strategy's scope.
    """
    model.static_shapes = settings.jit_compile
    if strategy is None:
        return _single_step(model, optimizer, settings, signature)
    if settings.batch_size < strategy.num_replicas_in_sync:
        raise UserError(
            f"`batch_size` must be at least the number of replicas, {strategy.num_replicas_in_sync}. "
            f"Received: batch_size={settings.batch_size}"
        )
    for name, variables in (("model", model.variables), ("optimizer", optimizer.variables)):
        if not all(strategy.extended.variable_created_in_scope(variable.value) for variable in variables):
            raise ValueError(f"`{name}` must be made under `strategy.scope()`, all its variables")
    return _shared_step(model, optimizer, settings, strategy, signature)


def _single_step(
    model: Recommender, optimizer: optimizers.BertAdam, settings: TrainingSettings, signature: Signature | None
) -> Step:
    @tf.function(input_signature=signature and [signature], jit_compile=settings.jit_compile)
    def step(batch: Batch) -> dict[str, Tensor]:
        rate = tf.convert_to_tensor(optimizer.learning_rate)
        loss, gradients = _loss_and_gradients(model, batch)
        gradients, norm = optimizers.clip(gradients, settings.clip_norm)
        _update_alone(optimizer, gradients, model.trainable_variables)
        return {"loss": loss, "gradient_norm": norm, "learning_rate": rate}

    return step


def _update_alone(optimizer: optimizers.BertAdam, gradients: list[Tensor], variables: list[keras.Variable]) -> None:
    """Updates the variables of a single device, the large ones by XLA.

    It goes through such a table once, where one operation after the other goes through it a dozen times.
    """
    rate = optimizer.learning_rate
    large = [place for place, variable in enumerate(variables) if math.prod(variable.shape) >= LARGE]

    @tf.function(jit_compile=True)
    def update_large(gradients: list[Tensor]) -> None:
        for place, gradient in zip(large, gradients, strict=True):
            optimizer.update_step(gradient, variables[place], rate)

    if large:
        update_large([gradients[place] for place in large])
    for place, variable in enumerate(variables):
        if place not in large:
            optimizer.update_step(gradients[place], variable, rate)
    optimizer.iterations.assign_add(1)


def _shared_step(
    model: Recommender,
    optimizer: optimizers.BertAdam,
    settings: TrainingSettings,
    strategy: tf.distribute.Strategy,
    signature: Signature | None,
) -> Step:
    """The step of several replicas.

    Gradients are summed before they are clipped: the other way round the step would depend on the number of replicas.
    """

    @tf.function(jit_compile=settings.jit_compile)
    def part_of_loss(part: Batch, share: Tensor) -> tuple[Tensor, list[Tensor]]:
        return _loss_and_gradients(model, part, share)

    def replica(batch: Batch) -> tuple[Tensor, Tensor, list[Tensor]]:
        context = tf.distribute.get_replica_context()
        part = _part(batch, context.replica_id_in_sync_group, context.num_replicas_in_sync)
        share = model.loss_weight(part) / model.loss_weight(batch)
        with _own_noise(model, context.replica_id_in_sync_group):
            loss, gradients = part_of_loss(part, share)
        loss, *gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, [loss, *gradients])
        gradients, norm = optimizers.clip(gradients, settings.clip_norm)
        return loss, norm, gradients

    @tf.function(input_signature=signature and [signature])
    def step(batch: Batch) -> dict[str, Tensor]:
        with strategy.scope():
            rate = tf.convert_to_tensor(optimizer.learning_rate)
            loss, norm, gradients = strategy.run(replica, args=(batch,))
            _update(strategy, optimizer, gradients, model.trainable_variables)
            loss, norm = (strategy.experimental_local_results(value)[0] for value in (loss, norm))
        return {"loss": loss, "gradient_norm": norm, "learning_rate": rate}

    return step


def _update(
    strategy: tf.distribute.Strategy,
    optimizer: optimizers.BertAdam,
    gradients: list[Tensor],
    variables: list[keras.Variable],
) -> None:
    """Lets the optimizer update every replica's copies. Its own `apply` would first sum the gradients once more."""
    rate = optimizer.learning_rate
    for gradient, variable in zip(gradients, variables, strict=True):
        strategy.extended.update(
            variable.value,
            lambda copy, gradient: optimizer.update_step(gradient, copy, rate),
            args=(gradient,),
            group=False,
        )
    optimizer.iterations.assign_add(1)


def _loss_and_gradients(model: Recommender, batch: Batch, share: Tensor | float = 1.0) -> tuple[Tensor, list[Tensor]]:
    """Returns `share` of the loss, and its gradients, dense."""
    variables = [variable.value for variable in model.trainable_variables]
    with tf.GradientTape() as tape:
        loss = share * model.training_loss(batch)
    return loss, [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, variables)]


def _part(batch: Batch, number: Tensor, count: int) -> Batch:
    """Returns the rows of replica `number` of `count`: consecutive ones, as many for each, or one more."""
    rows = tf.shape(batch["items"])[0]
    begin, end = number * rows // count, (number + 1) * rows // count
    return {name: values[begin:end] for name, values in batch.items()}


@contextlib.contextmanager
def _own_noise(model: Recommender, number: Tensor) -> Iterator[None]:
    """Gives replica `number` noise of its own for the time being; replica 0 keeps that of a single device.

    Every replica has a copy of the generators' states, and all copies are the same. They are again afterwards, so that
    a checkpoint holds them all.
    """
    states = [variable.value for variable in model.non_trainable_variables if variable.name == SEED_STATE]
    shift = tf.stack([tf.cast(number, tf.int64) * SEED_STRIDE, 0])
    for state in states:
        state.assign_add(shift)
    yield
    for state in states:
        state.assign_sub(shift)
