"""Shows the progress of long work: a bar on a terminal, plain lines otherwise."""

import sys
import time
from collections.abc import Mapping

from tqdm import tqdm


class Progress:
    """Shows the progress of work that is counted in steps.

    Args:
        title: what is being done.
        total: number of steps.
        initial: steps that were done before.
        examples_per_step: used to show examples per second.
        line_every: seconds between two lines if there is no terminal.
        silent: show nothing.
    """

    def __init__(
        self,
        title: str,
        total: int,
        initial: int = 0,
        examples_per_step: int = 1,
        line_every: float = 30.0,
        silent: bool = False,
    ) -> None:
        self._title = title
        self._total = total
        self._done = self._initial = initial
        self._examples_per_step = examples_per_step
        self._line_every = line_every
        self._silent = silent
        self._begin = self._last_line = time.monotonic()
        shows_bar = sys.stderr.isatty() and not silent
        self._bar = tqdm(total=total, initial=initial, desc=title, unit="step") if shows_bar else None

    def advance(self, **values: float) -> None:
        """Counts one step and shows these values with it."""
        self._done += 1
        if self._bar is not None:
            self._bar.set_postfix_str(f"{self._rate():,.0f} examples/s {_format(values)}", refresh=False)
            self._bar.update()
        elif not self._silent and time.monotonic() - self._last_line >= self._line_every:
            self._last_line = time.monotonic()
            left = (self._total - self._done) * self._examples_per_step / max(self._rate(), 1e-9)
            self.say(
                f"{self._title}: step {self._done:,} of {self._total:,}, {_format(values)} "
                f"{self._rate():,.0f} examples/s, {clock(left)} left"
            )

    def say(self, line: str) -> None:
        """Prints a line without breaking the bar."""
        if not self._silent:
            tqdm.write(line, file=sys.stderr) if self._bar is not None else print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def _rate(self) -> float:
        return (self._done - self._initial) * self._examples_per_step / max(time.monotonic() - self._begin, 1e-9)


class Transfer:
    """Shows how much of a file has been downloaded or read. A context manager.

    Args:
        title: the file.
        initial: bytes that were there before.
        total: size of the file in bytes; None if unknown.
        line_every: seconds between two lines if there is no terminal.
    """

    def __init__(self, title: str, initial: int, total: int | None, line_every: float = 10.0) -> None:
        self._title = title
        self._done = initial
        self._total = total
        self._line_every = line_every
        self._last_line = time.monotonic()
        units = {"unit": "B", "unit_scale": True, "unit_divisor": 1024}
        self._bar = tqdm(total=total, initial=initial, desc=title, **units) if sys.stderr.isatty() else None

    def __enter__(self) -> "Transfer":
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, received: int) -> None:
        """Counts bytes, up to the total: parts of an archive are read twice."""
        received = received if self._total is None else min(received, self._total - self._done)
        self._done += received
        if self._bar is not None:
            self._bar.update(received)
        elif time.monotonic() - self._last_line >= self._line_every:
            self._last_line = time.monotonic()
            whole = f" of {self._total / 1e6:,.0f}" if self._total else ""
            print(f"{self._title}: {self._done / 1e6:,.0f}{whole} MB", file=sys.stderr, flush=True)


def _format(values: Mapping[str, float]) -> str:
    return " ".join(f"{name} {value:.4g}" for name, value in values.items())


def clock(seconds: float) -> str:
    """Returns hours, minutes and seconds as 1:02:03."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


def warn(line: str) -> None:
    """Prints a warning."""
    print(f"warning: {line}", file=sys.stderr, flush=True)
