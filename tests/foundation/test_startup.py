"""TensorFlow is quiet and keeps the memory of large tensors, where the package imports it."""

import os
import subprocess
import sys

import pytest

from bert4rec_tf.foundation.startup import KEPT_MEMORY

PAGE_FAULTS = """
import resource, sys
from bert4rec_tf.foundation.startup import import_tensorflow
import_tensorflow()
import tensorflow as tf
numbers = tf.ones([1 << 24])
sums = tf.function(lambda: tf.reduce_sum(tf.square(tf.exp(numbers)) + numbers))
for _ in range(2):
    sums()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    sums()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

PAGES = 4 * (1 << 26) // os.sysconf("SC_PAGE_SIZE")
"""Of one tensor, in four calls."""


def run_python(program: str, **settings: str) -> str:
    """Returns what a program prints. Nothing may be on standard error."""
    others = {name: value for name, value in os.environ.items() if name not in KEPT_MEMORY}
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, env={**others, **settings}, capture_output=True, text=True, check=True)
    assert not ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_large_tensors_are_given_memory_that_is_in_use_already():
    assert int(run_python(PAGE_FAULTS)) < PAGES / 20


@pytest.mark.slow
def test_the_users_own_setting_of_memory_stays():
    """Whether TensorFlow then returns memory to the system depends on the machine."""
    program = """
import os
from bert4rec_tf.foundation.startup import import_tensorflow
import_tensorflow()
print(os.environ["TF_CPU_ALLOCATOR_USE_BFC"])
"""
    assert run_python(program, TF_CPU_ALLOCATOR_USE_BFC="false").strip() == "false"


@pytest.mark.slow
def test_tensorflow_says_nothing_in_a_notebook_without_a_gpu():
    program = """
import sys
sys.ps1 = "In [1]: "  # as in a notebook, where TensorFlow logs more
from bert4rec_tf.foundation.startup import import_tensorflow
import_tensorflow()
import tensorflow as tf
tf.ones([2]) + 1
tf.get_logger().warning("triggered tf.function retracing")
tf.get_logger().info("Assets written to: model")
"""
    assert run_python(program, TF_CPP_MIN_LOG_LEVEL="0") == ""
