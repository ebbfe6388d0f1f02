"""What the default run does of tests with many cases; `pytest -m slow` does the rest."""

from collections.abc import Iterable

import hypothesis
import pytest

QUICK = 20
"""The most examples of a property in the default run."""


def is_full(markers: str) -> bool:
    """Tells whether the marker expression of the command line asks for the slow tests."""
    return "slow" in markers and "not slow" not in markers


def examples(number: int) -> int:
    """Returns `number` where the slow tests run, at most `QUICK` otherwise; for `settings(max_examples=...)`."""
    return number if hypothesis.settings.default.max_examples > QUICK else min(number, QUICK)


def slow_but(quick: Iterable, cases: Iterable) -> list:
    """Returns the cases of a parametrized test, all but the `quick` ones marked as slow. A tuple is several values."""
    quick, cases = list(quick), list(cases)
    assert all(case in cases for case in quick), quick
    return [
        case if case in quick else pytest.param(*(case if isinstance(case, tuple) else [case]), marks=pytest.mark.slow)
        for case in cases
    ]
