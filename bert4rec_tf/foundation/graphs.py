"""Graphs made from Python functions.

This package branches and loops over tensors by `tf.cond` and `tf.while_loop` alone. So TensorFlow need not rewrite its
functions first (AutoGraph), nor those of Keras that they call, and a run begins sooner.
"""

import functools

import tensorflow as tf

graph = functools.partial(tf.function, autograph=False)
"""`tf.function`, of the function as it stands."""

plain = tf.autograph.experimental.do_not_convert
"""Marks a function for `tf.data`, which takes it as it stands."""
