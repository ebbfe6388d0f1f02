"""How many examples a property test tries: few by default, all of them with `pytest -m slow`."""

import hypothesis

QUICK = 20
"""The most examples of a property in the default run."""


def is_full(markers: str) -> bool:
    """Tells whether the marker expression of the command line asks for the slow tests."""
    return "slow" in markers and "not slow" not in markers


def examples(number: int) -> int:
    """Returns `number` where the slow tests run, at most `QUICK` otherwise; for `settings(max_examples=...)`."""
    return number if hypothesis.settings.default.max_examples > QUICK else min(number, QUICK)
