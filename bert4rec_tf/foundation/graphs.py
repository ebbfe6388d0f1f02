"""Graphs made from Python functions.

This package branches and loops over tensors only with `tf.cond` and `tf.while_loop`. So AutoGraph need not rewrite its
functions, nor those of Keras that they call, and a run begins sooner.
"""

import functools

import tensorflow as tf

tf_function = functools.partial(tf.function, autograph=False)
"""`tf.function` without AutoGraph."""

no_autograph = tf.autograph.experimental.do_not_convert
"""Marks a function that `tf.data` calls: AutoGraph then leaves it as it is."""
