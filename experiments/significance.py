"""Tests whether BERT4Rec differs from the other models of Table 2, by the ranks of the same users."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec_tf.evaluation.metrics import METRICS, POPULAR
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.warning import FileWarning, warn
from bert4rec_tf.runs import comparison
from bert4rec_tf.runs.folder import WorkDirectory
from experiments.findings import Findings
from experiments.grids import find_title
from experiments.results import Line, Results
from experiments.tables import MODELS

FILE = "comparisons.json"
OURS = "bert4rec"
ROUNDING = 1e-9
LEVEL = 0.01
"""A difference with a smaller p-value is called significant, as in the paper."""

BETTER, WORSE, NOT_SIGNIFICANT = "better", "Significantly worse than", "Not significantly different from"


def name_pairs(findings: Findings) -> dict[tuple[str, str], str]:
    """Returns (data set, model) -> the name of its comparison with BERT4Rec, if both have finished a seed."""
    places = [(dataset, model) for dataset in findings.list_datasets() for model in MODELS if model != OURS]
    return {place: name for place in places if (name := findings.name_pair(*place, OURS))}


def compare_all(names: Iterable[str], folders: Mapping[str, Path], results: Results) -> None:
    """Compares finished runs whose ranks are on this machine, and writes the comparisons to FILE.

    Older comparisons stay if they fit the results of both runs. `names`: pairs of keys, "first second". `folders`:
    key -> work directory.
    """
    new_comparisons = {}
    for name in names:
        first, second = (folders[key] for key in name.split())
        if not all(WorkDirectory(folder).ranks.exists() for folder in (first, second)):
            continue  # made elsewhere: ranks stay with the work directories
        try:
            new_comparisons[name] = {
                protocol: {metric: asdict(difference) for metric, difference in metrics.items()}
                for protocol, metrics in comparison.compare(first, second).items()
            }
        except UserError as error:
            warn(str(error), FileWarning)
    with results.lock():
        lines, old_comparisons = results.read(), results.read_json(FILE)
        valid_comparisons = {name: entry for name, entry in old_comparisons.items() if _is_of_lines(name, entry, lines)}
        if new_comparisons or valid_comparisons != old_comparisons:
            files.write_json(results.folder / FILE, {**valid_comparisons, **new_comparisons})


def correct_by_holm(p_values: Mapping[Any, float]) -> dict[Any, float]:
    """Returns the p-values, corrected by Holm's method for their number."""
    names = sorted(p_values, key=p_values.__getitem__)
    factors = np.arange(len(names), 0, -1)
    values = np.maximum.accumulate(factors * [p_values[name] for name in names])
    return dict(zip(names, np.minimum(values, 1.0).tolist()))


def write_sentences(findings: Findings, comparisons: Mapping[str, Any]) -> list[str]:
    """Returns sentences: in which cells of Table 2 BERT4Rec is better, worse, not significantly different, or untested.

    Args:
        findings: Table 2.
        comparisons: the content of FILE: "first second" -> protocol -> metric -> the fields of `metrics.Difference`.
    """
    names = name_pairs(findings)
    differences = {place: comparisons[name][POPULAR] for place, name in names.items() if name in comparisons}
    cells = list(itertools.product(differences, METRICS))
    if not cells:
        return ["Significance: unknown. It needs the ranks of two runs, which stay in their work directories."]
    p_values = correct_by_holm({(place, metric): differences[place][metric]["p_value"] for place, metric in cells})
    verdicts: dict[str, dict[tuple[str, str], list[str]]] = {BETTER: {}, WORSE: {}, NOT_SIGNIFICANT: {}}
    for place, metric in cells:
        sign = BETTER if differences[place][metric]["mean"] > 0 else WORSE
        verdict = sign if p_values[place, metric] < LEVEL else NOT_SIGNIFICANT
        verdicts[verdict].setdefault(place, []).append(metric.upper())
    better, worse, open_cells = (sum(map(len, places.values())) for places in verdicts.values())
    num_wins = {place: _count_ahead(findings, *place) for place in names if place not in differences}
    num_cells = len(METRICS) * len(names)
    lines = [
        f"Significance beside the paper's other models, for the users alone: BERT4Rec is better with p < {LEVEL} in "
        f"{better} of {num_cells} comparisons, worse in {worse}, not significantly different in {open_cells}, and "
        f"untested in {num_cells - len(cells)}. Each is of one metric on the same users, for the first seed that both "
        f"have, so none says what another seed would give. The two-sided p-values of all {len(cells)} comparisons here "
        "are corrected together by Holm's method."
    ]

    def list_cells(notes: Mapping[tuple[str, str], str]) -> str:
        return "; ".join(f"{MODELS[model]} on {find_title(data)} ({note})" for (data, model), note in notes.items())

    for verdict in (WORSE, NOT_SIGNIFICANT):
        if verdicts[verdict]:
            text = list_cells({place: ", ".join(metrics) for place, metrics in verdicts[verdict].items()})
            lines.append(f"{verdict} {text}.")
    if num_wins:
        counts = list_cells({place: f"{count} of {len(METRICS)}" for place, count in num_wins.items()})
        lines.append(
            "Untested, because the ranks of both runs were not here together; in parentheses, by how many metrics "
            f"BERT4Rec's mean is higher: {counts}. That is {sum(num_wins.values())} of {len(METRICS) * len(num_wins)}."
        )
    return lines


def _count_ahead(findings: Findings, dataset: str, model: str) -> int:
    """Returns by how many metrics BERT4Rec's mean is above a model's."""
    our_means, rival_means = findings.compute_means((OURS, model), METRICS, [dataset])[0].T
    return int(np.sum(our_means > rival_means))


def _is_of_lines(name: str, comparison: Mapping[str, Any], lines: Mapping[str, Line]) -> bool:
    """Returns whether both runs of a comparison are finished and have the results that were compared."""
    first, second = (lines.get(key, {}).get("test") for key in name.split())
    if first is None or second is None:
        return False
    return all(
        abs(difference["mean"] - (second[protocol][metric] - first[protocol][metric])) < ROUNDING
        for protocol, differences in comparison.items()
        for metric, difference in differences.items()
    )
