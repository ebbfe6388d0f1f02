"""What long work shows."""

import subprocess
import sys
import time

import pytest

from bert4rec_tf.foundation import progress
from bert4rec_tf.foundation.progress import MEASURED, Progress


class Clock:
    def __init__(self):
        self.now = 1_000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def shown(clock, capsys, seconds, **options):
    """Takes a first step of 100 s and others of these seconds, and returns the lines."""
    bar = Progress("training", initial=0, examples_per_step=10, **options)
    for step in range(1, options["total"] + 1):
        clock.now += 100.0 if step == 1 else seconds
        bar.advance(loss=2.0)
    bar.close()
    return capsys.readouterr().err.splitlines()


def test_no_time_is_shown_before_some_steps_are_measured_and_the_first_does_not_count(clock, capsys):
    lines = shown(clock, capsys, 40.0, total=8)
    assert len(lines) == 8 and all(" left" not in line and "examples/s" not in line for line in lines[:MEASURED])
    assert lines[0] == "training: step 1 of 8, loss 2"
    assert lines[MEASURED:] == [
        f"training: step {step} of 8, loss 2, 0 examples/s, 0:0{(8 - step) * 40 // 60}:{(8 - step) * 40 % 60:02d} left"
        for step in (6, 7, 8)
    ]


def test_the_first_measured_steps_give_an_estimate(clock, capsys):
    lines = shown(clock, capsys, 2.0, total=1_000)
    assert lines[1] == "training: step 6 of 1,000, loss 2, 5 examples/s, 0:33:08 left"
    assert lines[2].startswith("training: step 21 of 1,000") and lines[2].endswith("0:32:38 left")


def test_short_work_is_quiet(clock, capsys):
    assert shown(clock, capsys, 0.01, total=500) == ["training: step 1 of 500, loss 2"]


def test_the_training_after_this_one_is_part_of_the_estimate(clock, capsys):
    lines = shown(clock, capsys, 2.0, total=100, num_later=50)
    assert lines[1].endswith(", at most 0:04:48 left")


def test_measurements_between_steps_are_part_of_the_estimate_and_not_of_a_step(clock, capsys):
    """900 steps of 2 s are left after the pause of 50 s, and 9 more pauses."""
    bar = Progress("training", total=1_000, num_pauses=10)
    for step in range(1, 102):
        clock.now += 2.0
        bar.advance(loss=2.0)
        if step == 100:
            with bar.pause():
                clock.now += 50.0
    bar.close()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "training: step 101 of 1,000, loss 2, 0 examples/s, 0:37:28 left"


def test_a_notebook_shows_a_bar_and_no_lines(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ipykernel.zmqshell", None)
    slow, quick = Progress("slow", 40), Progress("quick", 1)
    quick.advance()
    quick.close()
    time.sleep(1.1 * progress.BAR_DELAY)
    for _ in range(40):
        slow.advance(loss=2.0)
    slow.say("a line")
    slow.close()
    text = capsys.readouterr().err
    assert "\rslow: 100%|" in text and "| 40/40 [" in text and "a line\n" in text
    assert "quick" not in text and "step" not in text


def test_the_bar_is_that_of_notebooks_in_a_kernel():
    code = (
        "import sys, types, warnings; warnings.simplefilter('error')\n"
        "sys.modules |= {'ipykernel.zmqshell': types.ModuleType('x'), 'IPython': types.ModuleType('IPython')}\n"
        "sys.modules['IPython'].get_ipython = lambda: None\n"
        "from bert4rec_tf.foundation.progress import ProgressBar, has_bars; import tqdm.auto, tqdm.notebook\n"
        "print(has_bars(), ProgressBar is tqdm.auto.tqdm,"
        " issubclass(ProgressBar, tqdm.notebook.tqdm) == (tqdm.notebook.IProgress is not None))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stdout.split() == ["True"] * 3, ended.stderr
