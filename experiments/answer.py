"""The report's first section: which model ranks best, by how much, and whether this can be chance."""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from bert4rec_tf.evaluation.metrics import NDCG, PROTOCOLS
from experiments.findings import Findings
from experiments.grids import NOT_RUN, PROTOCOL_TITLES, Cell, Grid, find_title, format_value
from experiments.tables import NOT_IN_PAPER, TABLES

ONE_SEED = "not known: one seed"
"""The verdict if a model that is trained has a single seed: another seed might turn the order round."""

HEADER = ["", "best", "NDCG@10", "second", "NDCG@10", "lead", "95 % interval", "beyond chance"]

SURE = ("yes", "yes, by a bound")
"""The verdicts on a lead beyond chance."""


def find_leaders(findings: Findings) -> dict[tuple[str, str], list[str]]:
    """Returns (data set, protocol) -> the best two models by NDCG@10, where two or more have one."""
    leaders = {}
    for dataset, protocol in itertools.product(findings.list_measured_datasets(), PROTOCOLS):
        variants = findings.list_variants(dataset)
        means = {model: findings.compute_mean(dataset, model, NDCG, protocol) for model in variants}
        known_models = [model for model, mean in means.items() if not math.isnan(mean)]
        if len(known_models) > 1:
            leaders[dataset, protocol] = sorted(known_models, key=means.__getitem__, reverse=True)[:2]
    return leaders


def name_pairs(findings: Findings) -> dict[tuple[str, str], str]:
    """Returns (data set, protocol) -> the keys of the second and the best model's runs, if they share a seed."""
    return {
        (dataset, protocol): name
        for (dataset, protocol), (best, second) in find_leaders(findings).items()
        if (name := findings.name_pair(dataset, second, best))
    }


def compute_interval(user_variance: float, bests: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Returns the 95 % confidence interval of a lead, the difference of the means over seeds.

    Chance in training (Welch's t-test) is added to chance in the users: a mean over seeds has no less of the latter. A
    model with a single value is one that only counts, without chance in training.

    Args:
        of_users: the variance of the lead of a single seed by chance in the users.
        bests, seconds: the metric of each seed of the two models.
    """
    samples = [values for values in (bests, seconds) if len(values) > 1]
    seed_variances = [float(np.var(values, ddof=1)) / len(values) for values in samples]
    variance = user_variance + sum(seed_variances)
    spread = sum(part**2 / (len(values) - 1) for part, values in zip(seed_variances, samples))
    half = float(stats.t.ppf(0.975, variance**2 / spread if spread else math.inf)) * math.sqrt(variance)
    lead = float(np.mean(bests) - np.mean(seconds))
    return lead - half, lead + half


def measure_variance(comparison: Mapping[str, float]) -> float:
    """Returns the variance of a lead by chance in the users, from a comparison of one seed of each model on them."""
    return ((comparison["high"] - comparison["low"]) / (2 * stats.norm.ppf(0.975))) ** 2


def bound_variance(bests: Sequence[float], seconds: Sequence[float], users: int) -> float:
    """Returns the most that `measure_variance` may be, if the ranks are missing.

    Numbers between 0 and 1 with mean m have a variance of at most m (1 - m). Two models tend to find the same users
    easy. Assuming that, the variance of their difference is at most the sum of both variances.
    """
    means = [float(np.mean(values)) for values in (bests, seconds)]
    return sum(mean * (1 - mean) for mean in means) / users


def write_sentences(findings: Findings, rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Returns the paragraphs that explain the rows of `grid`."""
    if not findings.list_measured_datasets():
        return [f"Table 2: {NOT_RUN}."]
    first = Counter(row[1].text for row in rows)
    wins = Counter(row[1].text for row in rows if row[-1].text in SURE)
    return [
        *(
            f"Best by NDCG@10 in {count} of the {len(rows)} rows below, and beyond chance in {wins[title]}: {title}."
            for title, count in first.items()
        ),
        "The test item is each user's last one. It is ranked among 100 items drawn by popularity (“100 popular”, as in "
        "the paper), among 100 drawn uniformly (“100 uniform”), or among all items that the user has not had. The last "
        "is what a recommender does; popular candidates reward a model that ranks popular items low.",
        "A lead is beyond chance if its interval is above 0. It compares means over seeds, and covers chance in the "
        "users and in training. So there is none, and no verdict, where a model that is trained has a single seed. It "
        "is not corrected for the number of rows. If only the ranks are missing, a bound decides: it can confirm a "
        "lead, or leave it open.",
        *_describe_seeds(findings),
    ]


def _describe_seeds(findings: Findings) -> list[str]:
    """Returns the paragraph that says how far the seeds of a model lie apart; none without several seeds."""
    ranges = []
    for dataset, model in findings.runs:
        values = findings.list_values(dataset, model, NDCG)
        if len(values) > 1:
            low, high = format_value(min(values)), format_value(max(values))
            title = f"“{_make_title(model)}” on {find_title(dataset)}"
            ranges.append(f"from {low} to {high} over the {len(values)} seeds of {title}")
    sentence = f"Another seed gives another result. Among popular items NDCG@10 goes {'; '.join(ranges)}."
    return [sentence] if ranges else []


def make_grid(findings: Findings, comparisons: Mapping[str, Any]) -> Grid:
    """Returns a row for each of the leaders. `findings`: Table 2. `comparisons`: the content of `significance.FILE`."""
    names = name_pairs(findings)
    rows = [
        _make_row(findings, dataset, protocol, first, other, comparisons.get(names.get((dataset, protocol), ""), {}))
        for (dataset, protocol), (first, other) in find_leaders(findings).items()
    ]
    return Grid(HEADER, rows, "The two best models by NDCG@10 of the test items, for each set of candidates")


def _make_row(
    findings: Findings, dataset: str, protocol: str, first: str, other: str, comparison: Mapping[str, Any]
) -> list[Cell]:
    bests, seconds = (findings.list_values(dataset, model, NDCG, protocol) for model in (first, other))
    best, second = float(np.mean(bests)), float(np.mean(seconds))
    interval, verdict = "unknown", ONE_SEED
    if all(findings.has_known_spread(dataset, model) for model in (first, other)):
        if protocol in comparison:
            low, high = compute_interval(measure_variance(comparison[protocol][NDCG]), bests, seconds)
            interval, verdict = f"{low:+.4f} to {high:+.4f}", SURE[0] if low > 0 else "no"
        else:
            users = findings.list_lines(dataset, first)[0]["users"]
            low, _ = compute_interval(bound_variance(bests, seconds, users), bests, seconds)
            verdict = SURE[1] if low > 0 else "open"
    return [
        Cell(f"{find_title(dataset)}, {PROTOCOL_TITLES[protocol]}"),
        Cell(_make_title(first), bold=True),
        Cell(format_value(best)),
        Cell(_make_title(other)),
        Cell(format_value(second)),
        Cell(f"{best / second - 1:+.1%}" if second else ""),
        Cell(interval),
        Cell(verdict),
    ]


def _make_title(model: str) -> str:
    return TABLES["table2"].variants[model].title.removesuffix(NOT_IN_PAPER)
