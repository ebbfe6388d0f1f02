"""TensorFlow is quiet and keeps the memory of large tensors, where the package imports it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

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


def run_printing(line, **options):
    code = f"from bert4rec_tf.foundation.startup import exit_on_error\nexit_on_error(lambda: {line})"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "", **options.pop("env", {})}
    return subprocess.run([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE, **options)


@pytest.mark.parametrize("line", ["print(1)", "print(1, flush=True)", "print('1' * 100_000)"])
def test_an_output_whose_reader_has_ended_is_no_success(line):
    reader, writer = os.pipe()
    os.close(reader)
    ended = run_printing(line, stdout=writer)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
def test_a_full_disk_ends_in_one_line():
    with open("/dev/full", "wb") as full:
        ended = run_printing("print(1)", stdout=full)
    assert ended.returncode == 2 and ended.stderr.decode().strip() == "error: [Errno 28] No space left on device"


def test_a_closed_output_is_no_mistake():
    code = (
        "import sys; sys.stdout = None\nfrom bert4rec_tf.foundation.startup import exit_on_error\nexit_on_error(dict)"
    )
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)


@pytest.mark.parametrize("way", ["import os; os.close(2)", "import sys; sys.stderr = None"])
def test_a_closed_standard_error_is_no_mistake(way):
    code = (
        f"{way}\nfrom bert4rec_tf.foundation.startup import import_tensorflow\nimport_tensorflow()\n"
        "from bert4rec_tf.foundation.progress import has_bars, show_transfer\nshow_transfer('a', 1).update(1)\n"
        "print(has_bars())"
    )
    code += "\nimport os\nprint(os.open('/dev/null', os.O_WRONLY) > 2)"  # else it would get what libraries log
    assert run_python(code).split() == ["False", "True"]


def test_an_error_without_a_standard_error_is_not_in_the_output():
    code = "import sys; sys.stderr = None\nfrom bert4rec_tf.foundation.startup import exit_on_error, exit_with_error"
    code += "\nexit_on_error(lambda: exit_with_error('lost'))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, b"", b"")


def test_what_the_terminal_cannot_show_is_escaped():
    ended = run_printing("print('caf\\u00e9 \\u4e03')", stdout=subprocess.PIPE, env={"PYTHONIOENCODING": "latin-1"})
    assert (ended.returncode, ended.stdout) == (0, b"caf\xe9 \\u4e03\n")
