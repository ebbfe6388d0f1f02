"""Graphs made from Python functions.

This package branches and loops over tensors by `tf.cond` and `tf.while_loop` alone. So TensorFlow need not rewrite its
functions first (AutoGraph), nor those of Keras that they call, and a run begins sooner.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

graph = functools.partial(tf.function, autograph=False)
"""`tf.function`, of the function as it stands."""

plain = tf.autograph.experimental.do_not_convert
"""Marks a function for `tf.data`, which takes it as it stands."""

_only_values = contextvars.ContextVar("_only_values", default=False)


@contextlib.contextmanager
def without_gradients() -> Iterator[None]:
    """Within it, functions of `with_gradient` are traced as plain ones, for models that only serve.

    Whoever loads a SavedModel with custom gradients keeps them, and with them all graphs of the model, for ever.
    """
    token = _only_values.set(True)
    try:
        yield
    finally:
        _only_values.reset(token)


def with_gradient(function: Callable[..., tuple[Any, Callable]]) -> Callable:
    """Does what `tf.custom_gradient` does, except within `without_gradients`."""
    differentiable = tf.custom_gradient(function)
    return lambda *inputs: function(*inputs)[0] if _only_values.get() else differentiable(*inputs)
