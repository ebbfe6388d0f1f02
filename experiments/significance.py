"""Tests whether BERT4Rec differs from the other models of Table 2, by the ranks of the same users."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bert4rec_tf.evaluation.metrics import METRICS, POPULAR
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import warn
from bert4rec_tf.runs import comparison
from bert4rec_tf.runs.workdir import WorkDirectory
from experiments.findings import Findings
from experiments.grids import find_title
from experiments.results import Line, Results
from experiments.tables import MODELS

FILE = "comparisons.json"
OURS = "bert4rec"
ROUNDING = 1e-9
LEVEL = 0.01
"""A difference with a smaller p-value is called significant, as in the paper."""

WORSE, NOT_SIGNIFICANT = "Significantly worse than", "Not significantly different from"


def name_pairs(findings: Findings) -> dict[tuple[str, str], str]:
    """Returns (data set, model) -> the name of its comparison with BERT4Rec, if both have finished a seed."""
    places = [(dataset, model) for dataset in findings.list_datasets() for model in MODELS if model != OURS]
    return {place: name for place in places if (name := findings.name_pair(*place, OURS))}


def compare_all(names: Iterable[str], folders: Mapping[str, Path], results: Results) -> None:
    """Compares finished runs whose ranks are on this machine, and writes the comparisons to FILE.

    Older comparisons stay if they fit the results of both runs. `names`: pairs of keys, "first second". `folders`:
    key -> work directory.
    """
    new = {}
    for name in names:
        both = [folders[key] for key in name.split()]
        if not all(WorkDirectory(folder).ranks.exists() for folder in both):
            continue  # made elsewhere: ranks stay with the work directories
        try:
            compared = comparison.compare(*both)
            new[name] = {
                protocol: {metric: asdict(one) for metric, one in metrics.items()}
                for protocol, metrics in compared.items()
            }
        except UserError as error:
            warn(str(error))
    with results.lock():
        lines, older = results.read(), results.read_json(FILE)
        fitting = {name: one for name, one in older.items() if _is_of_lines(name, one, lines)}
        if new or fitting != older:
            files.write_json(results.folder / FILE, {**fitting, **new})


def correct_by_holm(p_values: Mapping[Any, float]) -> dict[Any, float]:
    """Returns the p-values, corrected by Holm's method for their number."""
    corrected, highest = {}, 0.0
    for place, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[name]))
        corrected[name] = highest
    return corrected


def write_sentences(findings: Findings, comparisons: Mapping[str, Any]) -> list[str]:
    """Returns sentences: in which cells of Table 2 BERT4Rec is better, worse, not significantly different, or untested.

    Args:
        findings: Table 2.
        comparisons: the content of FILE: "first second" -> protocol -> metric -> the fields of `metrics.Difference`.
    """
    names = name_pairs(findings)
    titles = {(dataset, model): f"{MODELS[model]} on {find_title(dataset)}" for dataset, model in names}
    compared = {place: one[POPULAR] for place, one in select_matching(findings, comparisons, names).items()}
    corrected = correct_by_holm(
        {(place, metric): compared[place][metric]["p_value"] for place in compared for metric in METRICS}
    )
    if not corrected:
        return ["Significance: unknown. It needs the ranks of two runs, which stay in their work directories."]
    verdicts: dict[str, dict[tuple[str, str], list[str]]] = {"better": {}, WORSE: {}, NOT_SIGNIFICANT: {}}
    for place in compared:
        for metric in METRICS:
            sign = "better" if compared[place][metric]["mean"] > 0 else WORSE
            verdict = sign if corrected[place, metric] < LEVEL else NOT_SIGNIFICANT
            verdicts[verdict].setdefault(place, []).append(metric.upper())
    better, worse = (sum(map(len, verdicts[verdict].values())) for verdict in ("better", WORSE))
    untested = {place: _count_ahead(findings, *place) for place in names if place not in compared}
    ahead = sum(untested.values())
    all_cells = len(METRICS) * len(names)
    lines = [
        f"Significance beside the paper's other models, for the users alone: BERT4Rec is better with p < {LEVEL} in "
        f"{better} of {all_cells} comparisons, worse in {worse}, not significantly different in "
        f"{len(corrected) - better - worse}, and untested in {all_cells - len(corrected)}. Each is of one metric on "
        "the same users, for the first seed that both have, so none says what another seed would give. The two-sided "
        f"p-values of all {len(corrected)} comparisons here are corrected together by Holm's method."
    ]
    for verdict in (WORSE, NOT_SIGNIFICANT):
        listed = [f"{titles[place]} ({', '.join(metrics)})" for place, metrics in verdicts[verdict].items()]
        lines += [f"{verdict} {'; '.join(listed)}."] if listed else []
    if untested:
        listed = [f"{titles[place]} ({count} of {len(METRICS)})" for place, count in untested.items()]
        lines.append(
            "Untested, because the ranks of both runs were not here together; in parentheses, by how many metrics "
            f"BERT4Rec's mean is higher: {'; '.join(listed)}. That is {ahead} of {len(METRICS) * len(untested)}."
        )
    return lines


def _count_ahead(findings: Findings, dataset: str, model: str) -> int:
    """Returns by how many metrics BERT4Rec's mean is above a model's."""
    pairs = ([findings.compute_mean(dataset, one, metric) for one in (OURS, model)] for metric in METRICS)
    return sum(ours > theirs for ours, theirs in pairs if None not in (ours, theirs))


def select_matching(
    findings: Findings, comparisons: Mapping[str, Any], names: Mapping[Any, str]
) -> dict[Any, Mapping[str, Any]]:
    """Returns the comparisons that fit the results in `findings`: place -> protocol -> metric -> difference.

    Comparisons of the same runs on other data are left out. Older comparisons only have popular candidates.

    Args:
        findings: Table 2.
        comparisons: the content of FILE.
        names: place -> the keys of its two runs, "first second".
    """
    return {
        place: comparisons[name]
        for place, name in names.items()
        if POPULAR in comparisons.get(name, ()) and _is_of_lines(name, comparisons[name], findings.lines)
    }


def _is_of_lines(name: str, compared: Mapping[str, Any], lines: Mapping[str, Line]) -> bool:
    """Returns whether both runs of a comparison are finished and have the results that were compared."""
    first, second = (lines.get(key, {}).get("test") for key in name.split())
    return None not in (first, second) and all(
        abs(one["mean"] - (second[protocol][metric] - first[protocol][metric])) < ROUNDING
        for protocol, of_metrics in compared.items()
        for metric, one in of_metrics.items()
    )
