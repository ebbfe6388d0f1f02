"""A run's optimizer, and the compiled training step: gradients, clipping, update.

The step runs on one device, or on several that share each batch.
"""

import contextlib
import math
from collections.abc import Callable, Iterator

import keras
import tensorflow as tf
from keras.optimizers import Optimizer

from bert4rec_tf.config.run_record import TrainingSettings
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.graphs import tf_function
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models.keras_model import sum_repeated_rows
from bert4rec_tf.models.recommender import ITEMS, USERS, Recommender
from bert4rec_tf.nn.optimizers import Adagrad, BertAdam, RowwiseAdagrad, WarmUpLinearDecay
from bert4rec_tf.training import workers

Step = Callable[..., dict[str, Tensor]]
Signature = dict[str, tf.TypeSpec]

LARGE = 1 << 20
"""Updates of variables with at least this many elements are compiled with XLA."""

SEED_STATE = "seed_generator_state"
"""Keras' name for the state of a random generator: its seed and a counter."""

SEED_STRIDE = 1_000_000_007
"""Difference between the seeds of two replicas. Keras draws the layers' seeds from 1 to 10^9."""


def make_optimizer(settings: TrainingSettings, model: Recommender | None = None) -> BertAdam | Adagrad:
    """Returns a run's optimizer. `model`: rowwise_adagrad updates its tables by rows; other optimizers ignore it."""
    # A constant learning rate falls to 0 after infinitely many steps.
    steps = settings.steps if settings.schedule == "linear" else math.inf
    schedule = WarmUpLinearDecay(settings.learning_rate, steps, settings.warmup_steps)
    if settings.optimizer == "adagrad":
        return Adagrad(schedule, settings.momentum)
    adam = {
        "learning_rate": schedule,
        "decay": settings.weight_decay,
        "beta_1": settings.beta_1,
        "beta_2": settings.beta_2,
        "epsilon": settings.epsilon,
        "bias_correction": settings.bias_correction,
    }
    if settings.optimizer == "adam":
        return BertAdam(**adam)
    variables = [] if model is None else model.trainable_variables
    tables = [variable.path for variable in variables if model.row_kind(variable) in (ITEMS, USERS)]
    return RowwiseAdagrad(**adam, tables=tables, row_scale=settings.row_learning_rate / settings.learning_rate)


def make_strategy(replicas: int) -> tf.distribute.Strategy | None:
    """Returns the strategy that splits each batch over `replicas` devices; None for one device.

    The devices are GPUs if there are any, else virtual CPUs. If the process has joined others (`workers.join_team`),
    they are those of all machines. Create the model and the optimizer under `strategy.scope()`.

    Raises:
        UserError: if there are fewer devices. Virtual CPUs must be made before TensorFlow starts its devices.
    """
    if workers.current_team().strategy is not None:
        return workers.current_team().strategy
    if replicas == 1:
        return None
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    if kind == "CPU":
        _make_virtual_cpus(replicas)
    devices = tf.config.list_logical_devices(kind)
    if replicas > len(devices):
        raise UserError(
            f"`replicas` must be at most {len(devices)}, the number of devices. Received: replicas={replicas}"
        )
    # TensorFlow's default way of summing over CPUs fixes their number for the rest of the process.
    summing = tf.distribute.ReductionToOneDevice() if kind == "CPU" else None
    return tf.distribute.MirroredStrategy([device.name for device in devices[:replicas]], summing)


def _make_virtual_cpus(number: int) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    if len(tf.config.get_logical_device_configuration(cpu) or ()) < number:
        with contextlib.suppress(RuntimeError):  # The devices have started already; `make_strategy` counts them.
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * number)


def make_step(
    model: Recommender,
    optimizer: Optimizer,
    settings: TrainingSettings,
    strategy: tf.distribute.Strategy | None = None,
    signature: Signature | None = None,
) -> Step:
    """Returns the compiled training step: batch -> `loss`, `gradient_norm` (before clipping) and `learning_rate`.

    With a strategy, the step also takes `stopping`, one number per machine, and returns the sum over the machines.

    Args:
        model: its `training_loss` is minimised.
        optimizer: already built on the model's variables.
        settings: with `clip_norm`.
        strategy: from `make_strategy`, with model and optimizer created under its scope; None for one device. Each
            replica gets part of each batch; the result is the step of one device with the whole batch.
        signature: `element_spec` of the batches, to trace one graph for all widths; None to trace one per shape.
    """
    if strategy is not None:
        return _make_replicated_step(model, optimizer, settings, strategy, signature)

    @tf_function(input_signature=signature and [signature])
    def step(batch: Batch) -> dict[str, Tensor]:
        rate = tf.convert_to_tensor(optimizer.learning_rate)
        loss, gradients = model.compute_gradients(batch, getattr(optimizer, "tables", ()))
        gradients, norm = clip_gradients(gradients, settings.clip_norm)
        _apply_gradients(optimizer, gradients, model.trainable_variables)
        return {"loss": loss, "gradient_norm": norm, "learning_rate": rate}

    return step


def _apply_gradients(
    optimizer: Optimizer, gradients: list[Tensor], variables: list[keras.Variable], large_size: int = LARGE
) -> None:
    """Updates the variables of a single device, the large ones with XLA.

    XLA reads and writes a large table once; without it, a dozen operations each do.
    """
    rate = optimizer.learning_rate
    large = [
        index
        for index, (variable, gradient) in enumerate(zip(variables, gradients, strict=True))
        if math.prod(variable.shape) >= large_size and not isinstance(gradient, tf.IndexedSlices)
    ]

    @tf_function(jit_compile=True)
    def update_large(gradients: list[Tensor]) -> None:
        for index, gradient in zip(large, gradients, strict=True):
            optimizer.update_step(gradient, variables[index], rate)

    if large:
        update_large([gradients[index] for index in large])
    for index, variable in enumerate(variables):
        if index not in large:
            optimizer.update_step(gradients[index], variable, rate)
    optimizer.iterations.assign_add(1)


def _make_replicated_step(
    model: Recommender,
    optimizer: Optimizer,
    settings: TrainingSettings,
    strategy: tf.distribute.Strategy,
    signature: Signature | None,
) -> Step:
    """Returns the step of several replicas. Gradients are summed, then clipped, so that it equals one device's step."""

    # A function of its own: TensorFlow would optimize it otherwise where one graph holds it once and where it holds it
    # for two devices, and two workers would not give the bits of two devices.
    @tf_function
    def compute_part(part: Batch, share: Tensor) -> tuple[Tensor, list[Tensor]]:
        return model.compute_gradients(part, getattr(optimizer, "tables", ()), share)

    def replica(batch: Batch, stopping: Tensor) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        context = tf.distribute.get_replica_context()
        part = _take_part(batch, context.replica_id_in_sync_group, context.num_replicas_in_sync)
        share = model.loss_weight(part) / model.loss_weight(batch)
        with _per_replica_rng(model, context.replica_id_in_sync_group):
            loss, gradients = compute_part(part, share)
        loss, stopping, *gradients = workers.sum_over_replicas([loss, stopping, *gradients])
        gradients = [sum_repeated_rows(gradient) for gradient in gradients]
        gradients, norm = clip_gradients(gradients, settings.clip_norm)
        return loss, norm, stopping, gradients

    @tf_function(input_signature=signature and [signature, tf.TensorSpec([], tf.float32)])
    def step(batch: Batch, stopping: Tensor = 0.0) -> dict[str, Tensor]:
        with strategy.scope():
            rate = tf.convert_to_tensor(optimizer.learning_rate)
            loss, norm, stopping, gradients = strategy.run(replica, args=(batch, tf.convert_to_tensor(stopping)))
            # The optimizer's own `apply` would sum the gradients again.
            for gradient, variable in zip(gradients, model.trainable_variables, strict=True):
                strategy.extended.update(
                    variable.value,
                    lambda copy, gradient: optimizer.update_step(gradient, copy, rate),
                    args=(gradient,),
                    group=False,
                )
            optimizer.iterations.assign_add(1)
            loss, norm, stopping = (strategy.experimental_local_results(value)[0] for value in (loss, norm, stopping))
        return {"loss": loss, "gradient_norm": norm, "learning_rate": rate, "stopping": stopping}

    return step


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


def _take_part(batch: Batch, number: Tensor, count: int) -> Batch:
    """Returns the rows that replica `number` of `count` gets. The sizes of the parts differ by at most one row."""
    rows = tf.shape(batch["items"])[0]
    begin, end = number * rows // count, (number + 1) * rows // count
    return {name: values[begin:end] for name, values in batch.items()}


@contextlib.contextmanager
def _per_replica_rng(model: Recommender, replica: Tensor) -> Iterator[None]:
    """Gives replica number `replica` its own random numbers inside the block. Replica 0 keeps those of a single device.

    Every replica has a copy of the generators' states. After the block the copies are equal again, so a checkpoint has
    only one.
    """
    states = [variable.value for variable in model.non_trainable_variables if variable.name == SEED_STATE]
    shift = tf.stack([tf.cast(replica, tf.int64) * SEED_STRIDE, 0])
    for state in states:
        state.assign_add(shift)
    yield
    for state in states:
        state.assign_sub(shift)
