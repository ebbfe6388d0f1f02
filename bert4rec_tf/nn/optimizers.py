"""The original's optimizer (Adam with decoupled weight decay), its schedule, and Adagrad."""

from collections.abc import Collection
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from bert4rec_tf.foundation.types import Tensor

ROW_EPSILON = 1e-10
"""Added to a row's sum of squares in `RowwiseAdagrad`."""

NOT_DECAYED = ("bias", "gamma", "beta")
"""Names of variables without weight decay. The original calls them LayerNorm, layer_norm and bias."""


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class WarmUpLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly from 0 during the warm-up, then falls linearly to 0 at the last step.

    With a warm-up, step 0 has the rate 0, and the warm-up rises to `learning_rate`. The decay counts from step 0, not
    from the end of the warm-up, so the rate jumps down a little where they meet. Infinitely many `steps` do not decay.
    """

    def __init__(self, learning_rate: float, steps: float, warmup_steps: int) -> None:
        self.learning_rate = learning_rate
        self._lengths = tf.Variable([steps, warmup_steps], dtype=tf.float32, trainable=False)
        self.set_lengths(steps, warmup_steps)

    def set_lengths(self, steps: float, warmup_steps: int) -> None:
        """Sets both numbers of steps, also for graphs that exist."""
        self.steps, self.warmup_steps = steps, warmup_steps
        self._lengths.assign([steps, warmup_steps])

    def __call__(self, step: Tensor) -> Tensor:
        step = ops.cast(step, "float32")
        steps, warmup_steps = self._lengths[0], self._lengths[1]
        warmup = step / ops.maximum(warmup_steps, 1.0)
        decay = 1.0 - ops.minimum(step, steps) / steps
        return self.learning_rate * ops.where(step < warmup_steps, warmup, decay)

    def get_config(self) -> dict[str, Any]:
        return {"learning_rate": self.learning_rate, "steps": self.steps, "warmup_steps": self.warmup_steps}


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class BertAdam(keras.optimizers.Optimizer):
    """w -= learning rate x (m / (sqrt(v) + epsilon) + decay x w), by default without bias correction.

    Keras' AdamW always corrects the bias, which makes the first steps about three times smaller than the original's.

    Args:
        learning_rate: a number or a schedule.
        decay: weight decay of all variables except those named in NOT_DECAYED.
        beta_1, beta_2: decay of the moments.
        epsilon: added outside the square root.
        bias_correction: divide the moments by 1 - beta^t, as in Adam's paper; the original does not.
    """

    _first_moments: list[keras.Variable] | dict[int, keras.Variable]
    _second_moments: list[keras.Variable] | dict[int, keras.Variable]

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 1e-4,
        decay: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        bias_correction: bool = False,
        name: str = "bert_adam",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.decay, self.beta_1, self.beta_2 = decay, beta_1, beta_2
        self.epsilon, self.bias_correction = epsilon, bias_correction

    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self._first_moments = [self.add_variable_from_reference(variable, "first") for variable in variables]
        self._second_moments = [self.add_variable_from_reference(variable, "second") for variable in variables]
        self._is_decayed = [variable.name not in NOT_DECAYED for variable in variables]

    def update_step(self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor) -> None:
        index = self._get_variable_index(variable)
        first, second = self._first_moments[index], self._second_moments[index]
        rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        self.assign_add(first, (gradient - first) * (1 - self.beta_1))
        self.assign_add(second, (ops.square(gradient) - second) * (1 - self.beta_2))
        step = first / (ops.sqrt(second) + self.epsilon)
        if self.bias_correction:
            time = ops.cast(self.iterations + 1, variable.dtype)
            first_scale, second_scale = 1 - ops.power(self.beta_1, time), 1 - ops.power(self.beta_2, time)
            step = (first / first_scale) / (ops.sqrt(second / second_scale) + self.epsilon)
        if self.decay and self._is_decayed[index]:
            step = step + self.decay * variable
        self.assign_sub(variable, rate * step)

    def get_config(self) -> dict[str, Any]:
        arguments = ("decay", "beta_1", "beta_2", "epsilon", "bias_correction")
        return {**super().get_config(), **{name: getattr(self, name) for name in arguments}}


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class Adagrad(keras.optimizers.Optimizer):
    """Adagrad with momentum, as GRU4Rec's authors use it; Keras' Adagrad has no momentum.

    v = momentum x v - learning rate x g / sqrt(sum of g^2 + epsilon); w += v. The momentum is in [0, 1).
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.05,
        momentum: float = 0.0,
        epsilon: float = 1e-6,
        name: str = "adagrad",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.momentum = momentum
        self.epsilon = epsilon

    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self._sums = [self.add_variable_from_reference(variable, "sum") for variable in variables]
        self._velocities = [self.add_variable_from_reference(variable, "velocity") for variable in variables]

    def update_step(self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor) -> None:
        index = self._get_variable_index(variable)
        total, velocity = self._sums[index], self._velocities[index]
        gradient = ops.cast(gradient, variable.dtype)
        self.assign_add(total, ops.square(gradient))
        step = ops.cast(learning_rate, variable.dtype) * gradient / ops.sqrt(total + self.epsilon)
        self.assign(velocity, self.momentum * velocity - step)
        self.assign_add(variable, velocity)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "momentum": self.momentum, "epsilon": self.epsilon}


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class RowwiseAdagrad(BertAdam):
    """Adagrad by rows for large tables, BertAdam for all else. Only the rows that a step reads change; none decays.

    Row r of a table: a_r += mean(g_r^2); w_r -= row_scale x learning rate x g_r / sqrt(a_r + ROW_EPSILON). So beside a
    table there is one number per row, where Adam keeps two more tables, and a step's cost does not grow with the rows.
    The rule is that of Duchi et al. (JMLR 2011) with one step size per row instead of one per weight.

    Args:
        learning_rate, decay, beta_1, beta_2, epsilon, bias_correction: as for BertAdam; rows use only the first one.
        tables: paths of the tables. Their gradients are `tf.IndexedSlices` in which no row is repeated.
        row_scale: the rows' learning rate divided by that of the other variables.
    """

    def __init__(self, *args: Any, tables: Collection[str] = (), row_scale: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **{"name": "rowwise_adagrad", **kwargs})
        self.tables = sorted(tables)
        self.row_scale = row_scale

    def build(self, variables: list[keras.Variable]) -> None:
        if self.built:
            return
        keras.optimizers.Optimizer.build(self, variables)
        self._first_moments, self._second_moments, self._row_sums = {}, {}, {}
        for index, variable in enumerate(variables):
            if variable.path in self.tables:
                name = f"{variable.name}_row_sums"
                self._row_sums[index] = self.add_variable(variable.shape[:1], initializer="zeros", name=name)
            else:
                self._first_moments[index] = self.add_variable_from_reference(variable, "first")
                self._second_moments[index] = self.add_variable_from_reference(variable, "second")
        self._is_decayed = [variable.name not in NOT_DECAYED for variable in variables]

    def update_step(self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor) -> None:
        if not isinstance(gradient, tf.IndexedSlices):
            return super().update_step(gradient, variable, learning_rate)
        sums = self._row_sums[self._get_variable_index(variable)].value
        table = variable.value if isinstance(variable, keras.Variable) else variable  # a replica's copy
        values, rows = gradient.values, gradient.indices
        squares = tf.reduce_mean(tf.square(values), axis=list(range(1, values.shape.rank)))
        sums.scatter_add(tf.IndexedSlices(squares, rows))
        rate = self.row_scale * tf.cast(learning_rate, values.dtype)
        scale = rate / tf.sqrt(tf.gather(sums, rows) + ROW_EPSILON)
        steps = tf.reshape(scale, tf.concat([tf.shape(rows), tf.ones([values.shape.rank - 1], tf.int32)], 0)) * values
        table.scatter_sub(tf.IndexedSlices(steps, rows))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "tables": self.tables, "row_scale": self.row_scale}
