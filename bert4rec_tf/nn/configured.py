"""The base class of the layers: their configuration and the shape of their outputs."""

import inspect
from typing import Any

import keras

from bert4rec_tf.foundation.types import Shape


class Configured(keras.layers.Layer):
    """A layer that keeps every argument of its constructor in an attribute of the same name, for `get_config`.

    Its outputs have the shape of its (first) inputs.
    """

    def compute_output_shape(self, input_shape: Shape) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        arguments = inspect.signature(type(self).__init__).parameters.values()
        own = [one.name for one in arguments if one.name != "self" and one.kind is not one.VAR_KEYWORD]
        return {**super().get_config(), **{name: getattr(self, name) for name in own}}
