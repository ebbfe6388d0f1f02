"""What a line of the results must have: the entries that the report and the listing read, as data."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from bert4rec_tf.config.data_names import remove_source
from bert4rec_tf.config.popularity_option import CORRECTION
from bert4rec_tf.config.run_record import RETRAIN, SELECT
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.evaluation.metrics import METRICS, NDCG, POPULAR, PROTOCOLS

FINISHED, FAILED, STOPPED = "finished", "failed", "stopped"
"""The `status` of a line: measured, ended with an error, or stopped and to be resumed."""


class Kind(NamedTuple):
    """What a value must be, in words and as a test."""

    words: str
    fits: Callable[[Any], bool]


def _is_number(value: Any, high: float = math.inf) -> bool:
    return type(value) in (int, float) and 0 <= value <= high


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and all(isinstance(value, str) for value in values)


def _is_file(value: Any) -> bool:
    texts = [value.get(name) for name in ("name", "sha256")] if isinstance(value, Mapping) else [None]
    return all(isinstance(text, str) for text in texts) and value.get("as_published", "") in (None, True, False)


def _are_versions(value: Any) -> bool:
    return isinstance(value, Mapping) and _are_texts([*value.values()])


NOTHING: Any = ...
"""Stands for an entry that is not there; no JSON has it."""

TEXT = Kind("a text", lambda value: isinstance(value, str))
TEXTS = Kind("a list of texts", _are_texts)
COUNT = Kind("a whole number of at least 0", lambda value: type(value) is int and value >= 0)
AMOUNT = Kind("a number of at least 0", _is_number)
SHARE = Kind("a number in [0, 1]", lambda value: _is_number(value, 1))
GROUP = Kind("an object", lambda value: isinstance(value, Mapping))

FIELDS = {
    "key": TEXT,
    "status": Kind("finished, failed or stopped", lambda value: value in (FINISHED, FAILED, STOPPED)),
    "run.dataset": Kind("a data set's name", lambda value: remove_source(f"{value}") in datasets.DATASETS),
    "run.model": TEXT,
    "run.seed": COUNT,
    "budget": Kind("above 0 and at most 1", lambda value: _is_number(value, 1) and value > 0),
    "data_file": Kind("null, or have name, sha256 and as_published", lambda value: value is None or _is_file(value)),
    "wall_seconds": AMOUNT,
    "peak_memory": Kind("null or a number", lambda value: value is None or _is_number(value)),
}
"""Path of an entry of every line -> its kind."""

FIELDS_OF_STATUS = {
    FAILED: {"error": TEXT},
    FINISHED: {
        "digest": TEXT,
        "data_fingerprint": TEXT,
        "users": COUNT,
        "run.architecture": GROUP,
        "run.masking": GROUP,
        "run.training.batch_size": COUNT,
        "run.training.steps": COUNT,
        "environment.versions": Kind("texts by package", _are_versions),
        "environment.threads": COUNT,
        "environment.devices": TEXTS,
        **{f"test.{protocol}.{metric}": SHARE for protocol in PROTOCOLS for metric in METRICS},
    },
}

OPTIONAL_FIELDS = {
    "environment.accelerators": {"environment.accelerators": TEXTS},
    **{name: {f"{name}.steps": COUNT, f"{name}.seconds": AMOUNT} for name in (SELECT, RETRAIN)},
    "validation": {f"validation.{POPULAR}.{NDCG}": SHARE},
    CORRECTION: {
        f"{CORRECTION}.alpha": AMOUNT,
        **{f"{CORRECTION}.test.{protocol}.{metric}": SHARE for protocol in PROTOCOLS for metric in METRICS},
    },
}
"""Path of an entry that a line may lack -> its fields."""


def find_damage(line: Mapping[str, Any]) -> str | None:
    """Returns why a line cannot be read, in words; None if it can."""
    for path, kind in _list_fields(line):
        value = _read_entry(line, path)
        if not kind.fits(value):
            return f"`{path}` must be {kind.words}. Received: {'nothing' if value is NOTHING else f'{value!r:.80}'}"
    has_file = line["data_file"] is not None or line["status"] != FINISHED
    if not has_file and datasets.find_source(line["run"]["dataset"]) is not None:
        return "`data_file` must be known, as these data are not built in. Received: None"
    return None


def _list_fields(line: Mapping[str, Any]) -> Iterator[tuple[str, Kind]]:
    yield from FIELDS.items()
    yield from FIELDS_OF_STATUS.get(line["status"], {}).items()
    for path, fields in OPTIONAL_FIELDS.items():
        if _read_entry(line, path) is not NOTHING:
            yield from fields.items()


def _read_entry(line: Mapping[str, Any], path: str) -> Any:
    """Returns the entry at a path; NOTHING if there is none."""
    return functools.reduce(
        lambda group, name: group.get(name, NOTHING) if isinstance(group, Mapping) else NOTHING, path.split("."), line
    )
