"""Several steps of Keras' `fit` as one program of XLA."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from bert4rec_tf.foundation.graphs import tf_function
from bert4rec_tf.foundation.types import Batch, Tensor


def join_steps(
    take_step: Callable[[Batch], dict[str, Tensor]], number: int, otherwise: Callable[[Any], dict[str, Tensor]]
) -> Callable[[Any], dict[str, Tensor]]:
    """Returns a function that reads `number` batches of an iterator, or those that are left, and takes these steps.

    `take_step`: batch -> `loss`. Batches must be dictionaries of one shape; `otherwise` gets an iterator of others.
    """

    @tf_function(jit_compile=True)
    def take_steps(batches: Batch, count: Tensor) -> dict[str, Tensor]:
        def take_next(index: Tensor, _: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            return index + 1, take_step({name: column[index] for name, column in batches.items()})

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
        count, arrays, _ = tf.while_loop(lambda count, _, has_more: has_more & (count < number), read_next, begin)
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
