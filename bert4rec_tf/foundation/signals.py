"""Delays Ctrl-C and SIGTERM until the current step is done."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def delay_interrupts() -> Iterator[Callable[[], bool]]:
    """Delays Ctrl-C and SIGTERM, so that a checkpoint is never written in the middle of a step.

    Yields a function that returns whether a signal arrived. A second signal acts at once. Only the main thread receives
    signals; in other threads nothing is delayed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    received: list[int] = []
    old_handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # A handler that is not Python's is None, and could not be put back.
    handlers = {number: handler for number, handler in old_handlers.items() if handler is not None}

    def restore_handlers() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)
        restore_handlers()

    for number in handlers:
        signal.signal(number, note)
    try:
        yield lambda: bool(received)
    finally:
        restore_handlers()
