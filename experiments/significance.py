"""Whether BERT4Rec differs from each other model of Table 2, from the ranks of the same users."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bert4rec_tf import comparison, files
from bert4rec_tf.errors import UserError
from bert4rec_tf.metrics import METRICS, POPULAR
from experiments.results import Results

FILE = "comparisons.json"


def compare_all(pairs: Sequence[tuple[str, str]], folders: Mapping[str, Path], results: Results) -> None:
    """Compares pairs of finished runs whose ranks are there, and keeps what is found beside the results.

    Args:
        pairs: keys of two runs, the second the one that may gain.
        folders: the work directory of each key.
        results: in whose folder the comparisons are kept, with older ones.
    """
    found = read(results)
    for first, second in pairs:
        try:
            compared = comparison.compare(folders[first], folders[second])[POPULAR]
        except UserError:
            continue  # the ranks were made elsewhere, or not at all
        found[f"{first} {second}"] = {name: asdict(compared[name]) for name in METRICS}
    if found:
        files.write_json(results.folder / FILE, found)


def read(results: Results) -> dict[str, dict[str, dict[str, float]]]:
    """Returns "first second" -> metric -> the fields of `metrics.Difference`."""
    path = results.folder / FILE
    return files.read_json(path) if path.exists() else {}


def holm(p_values: Mapping[Any, float]) -> dict[Any, float]:
    """Returns the p-values corrected for their number by Holm's method."""
    ordered = sorted(p_values, key=p_values.__getitem__)
    corrected, highest = {}, 0.0
    for place, name in enumerate(ordered):
        highest = max(highest, min(1.0, (len(ordered) - place) * p_values[name]))
        corrected[name] = highest
    return corrected
