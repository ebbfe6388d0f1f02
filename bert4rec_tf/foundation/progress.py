"""Shows the progress of long work: a bar on a terminal and in a notebook, plain lines otherwise."""

import contextlib
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # In a notebook without ipywidgets, tqdm warns and shows a bar of text.
    from tqdm.auto import tqdm as ProgressBar

MEASURED = 5
"""Steps after which the time of a step is known. The first one does not count: TensorFlow makes its graphs in it."""

STEP_LINES, TRANSFER_SECONDS = 30.0, 10.0
"""Seconds between two lines, or two states of a transfer, if there is no bar."""

BAR_DELAY = 1.0
"""Seconds before a bar appears: short work is quiet."""

BAR = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
"""A bar's format, without tqdm's own estimate, which counts the first step."""


@dataclass(eq=False)
class Progress:
    """Shows the progress of work of `total` steps, of which `initial` were done before.

    Attributes:
        num_later: how many steps of the same length may follow in a second training.
        num_pauses: how often the work will `pause`. The time left counts those still to come, once one has been timed.
    """

    title: str
    total: int
    initial: int = 0
    examples_per_step: int = 1
    silent: bool = False
    num_later: int = 0
    num_pauses: int = 0

    def __post_init__(self) -> None:
        self._num_done = self.initial
        self._pause_seconds, self._num_paused = 0.0, 0
        self._begin = self._last_line = time.monotonic()
        self._done_at_begin: int | None = None
        options = {"total": self.total, "initial": self.initial, "desc": self.title, "bar_format": BAR}
        self._bar = ProgressBar(**options, delay=BAR_DELAY) if has_bars() and not self.silent else None

    def advance(self, steps: int = 1, /, **values: float) -> None:
        """Counts steps and shows these values with them."""
        self._num_done += steps
        now = time.monotonic()
        if self._done_at_begin is None:
            self._begin, self._done_at_begin = now, self._num_done
        count = self._num_done - self._done_at_begin
        parts = [" ".join(f"{name} {value:.4g}" for name, value in values.items())] if values else []
        seconds, is_due = 0.0, now - self._last_line >= STEP_LINES
        if count >= MEASURED:
            seconds = max(now - self._begin - self._pause_seconds, 1e-9) / count
            pauses = (self.num_pauses - self._num_paused) * self._pause_seconds / max(self._num_paused, 1)
            clock = format_clock((self.total - self._num_done + self.num_later) * seconds + pauses)
            prefix = "at most " if self.num_later else ""
            parts += [f"{self.examples_per_step / seconds:,.0f} examples/s", f"{prefix}{clock} left"]
        if self._bar is not None:
            self._bar.set_postfix_str(", ".join(reversed(parts)), refresh=False)  # its end may be cut off
            self._bar.update(steps)
        elif is_due or (MEASURED <= count < MEASURED + steps and (self.total - self._num_done) * seconds >= STEP_LINES):
            self._last_line = now
            self.say(", ".join([f"{self.title}: step {self._num_done:,} of {self.total:,}", *parts]))

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Times work between steps, which is no part of a step's time."""
        begin = time.monotonic()
        yield
        self._pause_seconds += time.monotonic() - begin
        self._num_paused += 1

    def say(self, line: str) -> None:
        """Prints a line without breaking the bar."""
        if self._bar is not None:
            ProgressBar.write(line, file=sys.stderr)
        elif not self.silent:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def show_transfer(title: str, total: int) -> ProgressBar:
    """Returns a bar that counts bytes, up to `total`; without a terminal or a notebook, a text now and then."""
    options = {"unit": "B", "unit_scale": True, "mininterval": 0.1 if has_bars() else TRANSFER_SECONDS}
    return ProgressBar(disable=sys.stderr is None, desc=title, total=total, delay=BAR_DELAY, **options)


def has_bars() -> bool:
    """Returns whether progress is shown as bars: on a terminal, and in a notebook's kernel, as `tqdm.auto` knows it."""
    return (sys.stderr is not None and sys.stderr.isatty()) or "ipykernel.zmqshell" in sys.modules


def format_clock(seconds: float) -> str:
    """Returns hours, minutes and seconds as 1:02:03."""
    return str(timedelta(seconds=round(seconds)))
