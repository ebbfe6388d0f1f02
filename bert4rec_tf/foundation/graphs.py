"""Graphs made from Python functions.

This package branches and loops over tensors only with `tf.cond` and `tf.while_loop`. So AutoGraph need not rewrite its
functions, nor those of Keras that they call, and a run begins sooner.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

tf_function = functools.partial(tf.function, autograph=False)
"""`tf.function` without AutoGraph."""

no_autograph = tf.autograph.experimental.do_not_convert
"""Marks a function that `tf.data` calls: AutoGraph then leaves it as it is."""

_only_values = contextvars.ContextVar("_only_values", default=False)


@contextlib.contextmanager
def disable_gradients() -> Iterator[None]:
    """Inside the block, functions made by `define_gradient` are traced without gradients, for models that only serve.

    The custom gradients of a SavedModel are never freed once it is loaded, and they keep all its graphs in memory.
    """
    token = _only_values.set(True)
    try:
        yield
    finally:
        _only_values.reset(token)


def define_gradient(function: Callable[..., tuple[Any, Callable]]) -> Callable:
    """Does what `tf.custom_gradient` does, except within `disable_gradients`."""
    differentiable = tf.custom_gradient(function)
    return lambda *inputs: function(*inputs)[0] if _only_values.get() else differentiable(*inputs)
