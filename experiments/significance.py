"""Tests whether BERT4Rec differs from the other models of Table 2, by the ranks of the same users."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bert4rec_tf.data.sources import datasets
from bert4rec_tf.evaluation.metrics import METRICS, POPULAR
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import warn
from bert4rec_tf.runs import comparison
from bert4rec_tf.runs.workdir import WorkDirectory
from experiments.findings import Findings
from experiments.results import Results
from experiments.tables import MODELS

FILE = "comparisons.json"
OURS = "bert4rec"
ROUNDING = 1e-9
LEVEL = 0.01
"""A difference with a smaller p-value is called significant, as in the paper."""

WORSE, NOT_SIGNIFICANT = "Significantly worse than", "Not significantly different from"


def name_pairs(findings: Findings) -> dict[tuple[str, str], str]:
    """Returns (data set, model) -> the name of its comparison with BERT4Rec, if both have finished a seed."""
    places = [(dataset, model) for dataset in findings.datasets() for model in MODELS if model != OURS]
    return {place: name for place in places if (name := findings.name_pair(*place, OURS))}


def compare_all(names: Iterable[str], folders: Mapping[str, Path], results: Results) -> None:
    """Compares finished runs whose ranks are on this machine, and writes the comparisons to FILE.

    Older comparisons stay if the results have both runs. `names`: pairs of keys, "first second". `folders`: key ->
    work directory.
    """
    new = {}
    for name in names:
        first, second = (folders[key] for key in name.split())
        if not all(WorkDirectory(folder).ranks.exists() for folder in (first, second)):
            continue  # made elsewhere: ranks stay with the work directories
        try:
            compared = comparison.compare(first, second)
        except UserError as error:
            warn(str(error))
            continue
        new[name] = {
            protocol: {metric: asdict(one) for metric, one in of_metrics.items()}
            for protocol, of_metrics in compared.items()
        }
    if new:
        with results.lock():
            lines, older = results.read(), results.read_json(FILE)
            older = {name: one for name, one in older.items() if all(key in lines for key in name.split())}
            files.write_json(results.folder / FILE, {**older, **new})


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
    titles = {
        (dataset, model): f"{MODELS[model]} on {datasets.find_dataset(dataset).title}" for dataset, model in names
    }
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
    lines = [
        f"Significance beside the paper's other models: BERT4Rec is better with p < {LEVEL} in {better} comparisons, "
        f"worse in {worse}. Each is of one metric on the same users, for the first seed that both have. The two-sided "
        f"p-values of all {len(corrected)} comparisons here are corrected together by Holm's method."
    ]
    for verdict in (WORSE, NOT_SIGNIFICANT):
        listed = [f"{titles[place]} ({', '.join(metrics)})" for place, metrics in verdicts[verdict].items()]
        lines += [f"{verdict} {'; '.join(listed)}."] if listed else []
    untested = [titles[place] for place in names if place not in compared]
    if untested:
        lines.append(
            f"Not compared or counted, because the ranks of both runs were not here together: {'; '.join(untested)}."
        )
    return lines


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
        if POPULAR in comparisons.get(name, ())
        and _is_consistent(comparisons[name], *(findings.lines[key]["test"] for key in name.split()))
    }


def _is_consistent(compared: Mapping[str, Any], first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    return all(
        abs(one["mean"] - (second[protocol][metric] - first[protocol][metric])) < ROUNDING
        for protocol, of_metrics in compared.items()
        for metric, one in of_metrics.items()
    )
