"""Whether BERT4Rec differs from each other model of Table 2, from the ranks of the same users."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bert4rec_tf.evaluation.metrics import METRICS, POPULAR
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.progress import warn
from bert4rec_tf.runs import comparison
from bert4rec_tf.runs.workdir import WorkDirectory
from experiments.findings import Findings, Line
from experiments.results import Results
from experiments.tables import MODELS

FILE = "comparisons.json"
OURS = "bert4rec"
ROUNDING = 1e-9
LEVEL = 0.01
"""Below it a difference is called significant, as in the paper."""


def pairs(found: Findings) -> dict[tuple[str, str], str]:
    """Returns the name of the comparison of BERT4Rec with each (data set, model) whose runs are finished."""
    names = {}
    for dataset in found.datasets():
        for model in MODELS:
            jobs = found.pair(dataset, model, OURS) if model != OURS else None
            if jobs is not None:
                names[dataset, model] = f"{jobs[0].key} {jobs[1].key}"
    return names


def compare_all(found: Findings, folders: Mapping[str, Path], results: Results) -> None:
    """Compares the finished runs whose ranks are at hand, and keeps what is found beside the results.

    Args:
        found: Table 2.
        folders: the work directory of each key.
        results: in whose folder the comparisons are kept, with older ones of runs whose results are there.
    """
    made = {}
    for name in pairs(found).values():
        first, second = (folders[key] for key in name.split())
        if not all(WorkDirectory(folder).ranks("test").exists() for folder in (first, second)):
            continue  # made elsewhere: ranks stay with the work directories
        try:
            compared = comparison.compare(first, second)[POPULAR]
        except UserError as error:
            warn(str(error))
            continue
        made[name] = {metric: asdict(compared[metric]) for metric in METRICS}
    if made:
        with results.lock():
            lines = results.read()
            kept = {name: one for name, one in read(results).items() if all(key in lines for key in name.split())}
            files.write_json(results.folder / FILE, {**kept, **made})


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


def sentences(found: Findings, comparisons: Mapping[str, Any], titles: Mapping[str, str]) -> list[str]:
    """Says in how many cells of Table 2 BERT4Rec is better or worse, which are open, and what was not compared.

    Args:
        found: Table 2.
        comparisons: as `read` returns them.
        titles: data set -> what it is called.
    """
    names = pairs(found)
    known = {
        place: comparisons[name]
        for place, name in names.items()
        if name in comparisons and _is_of(comparisons[name], *(found.lines[key] for key in name.split()))
    }
    p_values = {(*place, metric): known[place][metric]["p_value"] for place in known for metric in METRICS}
    if not p_values:
        return ["Significance: not known, for it needs the ranks of two runs, which stay in their work directories."]
    corrected = holm(p_values)
    verdicts: dict[str, list[tuple[str, str, str]]] = {"better": [], "worse": [], "not significant": []}
    for dataset, model, metric in corrected:
        gain = known[dataset, model][metric]["mean"]
        sign = "better" if gain > 0 else "worse"
        verdict = sign if corrected[dataset, model, metric] < LEVEL else "not significant"
        verdicts[verdict].append((dataset, model, metric))
    lines = [
        f"Significance: differences paired over the users, of the first seed that both models have; the two-sided "
        f"p-values of all {len(corrected)} comparisons here are corrected together by Holm's method. BERT4Rec is "
        f"better with p < {LEVEL} in {len(verdicts['better'])} of them, worse in {len(verdicts['worse'])}."
    ]
    for verdict in ("worse", "not significant"):
        if verdicts[verdict]:
            lines.append(f"{verdict.capitalize()}: {_listed(verdicts[verdict], titles)}.")
    open_ones = [f"{titles[dataset]}, {MODELS[model]}" for dataset, model in names if (dataset, model) not in known]
    if open_ones:
        lines.append(f"Not compared, for the ranks of both runs were not at hand together: {'; '.join(open_ones)}.")
    return lines


def _is_of(compared: Mapping[str, Any], first: Line, second: Line) -> bool:
    """Tells whether a comparison is of these results, and not of those of the same runs on other data."""
    means = [results["test"][POPULAR] for results in (first, second)]
    return all(abs(compared[metric]["mean"] - (means[1][metric] - means[0][metric])) < ROUNDING for metric in METRICS)


def _listed(places: Sequence[tuple[str, str, str]], titles: Mapping[str, str]) -> str:
    """Names comparisons, those with the same model together."""
    grouped = {(data, model): [] for data in titles for model in MODELS}
    for dataset, model, metric in places:
        grouped[dataset, model].append(metric)
    return "; ".join(
        f"{titles[dataset]}, {MODELS[model]}, {' '.join(metric.upper() for metric in METRICS if metric in some)}"
        for (dataset, model), some in grouped.items()
        if some
    )
