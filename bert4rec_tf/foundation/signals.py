"""Ctrl-C and SIGTERM, held back until what is being done is done."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def interrupts_wait() -> Iterator[Callable[[], bool]]:
    """Holds Ctrl-C and SIGTERM back until the end of a step, so that what is saved fits together.

    Yields a function that tells whether one came. A second one acts at once. Outside the main thread, which alone
    receives signals, nothing is held back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        for known, handler in before.items():
            signal.signal(known, handler)

    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
