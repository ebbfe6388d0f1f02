"""The report's first section: which model ranks best, by how much, and whether this can be chance."""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from bert4rec_tf.evaluation.metrics import NDCG, POPULAR, PROTOCOLS
from experiments import significance
from experiments.findings import Findings
from experiments.grids import ELSEWHERE, NOT_RUN, PROTOCOL_TITLES, Grid, Text, find_title, format_value
from experiments.tables import NOT_IN_PAPER, TABLES

STANDARD_ERRORS = 2.0
"""A lead of more standard errors than this is beyond chance: fewer than one in twenty comparisons has it by chance."""

ONE_SEED = "not known: one seed"
"""The verdict if a model that is trained has a single seed: another seed might turn the order round."""

HEADER = ("", "best", "NDCG@10", "second", "NDCG@10", "lead", "95 % interval", "beyond chance")

SURE = ("yes", "yes, by a bound")
"""The verdicts on a lead beyond chance."""


def find_leaders(findings: Findings) -> dict[tuple[str, str], list[tuple[str, float]]]:
    """Returns (data set, protocol) -> the best two models with their mean NDCG@10, where two or more have one."""
    places = {}
    for dataset, protocol in itertools.product(findings.list_measured_datasets(), PROTOCOLS):
        means = {
            model: findings.compute_mean(dataset, model, NDCG, protocol) for model in findings.list_variants(dataset)
        }
        values = [(model, value) for model, value in means.items() if value is not None]
        if len(values) > 1:
            places[dataset, protocol] = sorted(values, key=lambda one: one[1], reverse=True)[:2]
    return places


def name_pairs(findings: Findings) -> dict[tuple[str, str], str]:
    """Returns (data set, protocol) -> the keys of the second and the best model's runs, if they share a seed."""
    return {
        (dataset, protocol): name
        for (dataset, protocol), ((best, _), (second, _)) in find_leaders(findings).items()
        if (name := findings.name_pair(dataset, second, best))
    }


def exceeds_bound(bests: Sequence[float], seconds: Sequence[float], users: int) -> bool:
    """Returns whether the metric of each seed alone shows that a lead is beyond chance.

    Numbers between 0 and 1 with mean m have a variance of at most m (1 - m). Two models tend to find the same users
    easy. Assuming that, the variance of their difference is at most the sum of both variances.
    """
    means = [float(np.mean(values)) for values in (bests, seconds)]
    largest = sum(mean * (1 - mean) for mean in means) / users
    return means[0] - means[1] > max(STANDARD_ERRORS * math.sqrt(largest), _compute_half_width(largest, bests, seconds))


def compute_interval(
    compared: Mapping[str, float], bests: Sequence[float], seconds: Sequence[float]
) -> tuple[float, float]:
    """Returns the 95 % confidence interval of a lead, the difference of the means over seeds.

    Chance in training (Welch's t-test) is added to chance in the users, which is taken from `compared`: a mean over
    seeds has no more of it. A model with a single value is one that only counts, without chance in training.

    Args:
        compared: the `low` and `high` of one seed of each on the same users. Only their distance is used.
        bests, seconds: the metric of each seed of the two models.
    """
    of_users = ((compared["high"] - compared["low"]) / (2 * stats.norm.ppf(0.975))) ** 2
    half = _compute_half_width(of_users, bests, seconds)
    lead = float(np.mean(bests) - np.mean(seconds))
    return lead - half, lead + half


def _compute_half_width(of_users: float, *of_models: Sequence[float]) -> float:
    """Returns half the width of an interval. `of_users`: the variance by chance in the users."""
    several = [values for values in of_models if len(values) > 1]
    of_seeds = [float(np.var(values, ddof=1)) / len(values) for values in several]
    variance = of_users + sum(of_seeds)
    spread = sum(part**2 / (len(values) - 1) for part, values in zip(of_seeds, several))
    return float(stats.t.ppf(0.975, variance**2 / spread if spread else math.inf)) * math.sqrt(variance)


def write_sentences(findings: Findings, rows: Sequence[Sequence[Text]]) -> list[str]:
    """Returns the paragraphs that explain the rows of `grid`."""
    if not findings.list_measured_datasets():
        return [f"Table 2: {NOT_RUN}."]
    first = Counter(row[1].text.removesuffix(ELSEWHERE) for row in rows)
    surely = Counter(row[1].text.removesuffix(ELSEWHERE) for row in rows if row[-1].text in SURE)
    return [
        *(
            f"Best by NDCG@10 in {count} of the {len(rows)} rows below, and beyond chance in {surely[title]}: {title}."
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
    for dataset in findings.list_measured_datasets():
        for model in findings.list_variants(dataset):
            values = findings.list_values(dataset, model, NDCG, POPULAR)
            if len(values) > 1:
                title = f"“{_make_title(findings, dataset, model)}” on {find_title(dataset)}"
                low, high = format_value(min(values)), format_value(max(values))
                ranges.append(f"from {low} to {high} over the {len(values)} seeds of {title}")
    apart = f"Another seed gives another result. Among popular items NDCG@10 goes {'; '.join(ranges)}."
    return [apart] if ranges else []


def make_grid(findings: Findings, comparisons: Mapping[str, Any]) -> Grid:
    """Returns a row for each of the leaders. `findings`: Table 2. `comparisons`: the content of `significance.FILE`."""
    matching = significance.select_matching(findings, comparisons, name_pairs(findings))
    rows = [_make_row(findings, *place, two, matching.get(place)) for place, two in find_leaders(findings).items()]
    return Grid(HEADER, rows, "The two best models by NDCG@10 of the test items, for each set of candidates")


def _make_row(
    findings: Findings, dataset: str, protocol: str, two: list[tuple[str, float]], compared: Mapping[str, Any] | None
) -> list[Text]:
    (first, best), (other, second) = two
    bests, seconds = (findings.list_values(dataset, model, NDCG, protocol) for model in (first, other))
    shown_interval = "unknown"
    if not all(findings.has_known_spread(dataset, model) for model in (first, other)):
        verdict = ONE_SEED
    elif compared and protocol in compared:
        low, high = compute_interval(compared[protocol][NDCG], bests, seconds)
        shown_interval, verdict = f"{low:+.4f} to {high:+.4f}", SURE[0] if low > 0 else "no"
    else:
        users = findings.runs[dataset, first][0][1]["users"]
        verdict = SURE[1] if exceeds_bound(bests, seconds, users) else "open"
    cells = [
        f"{find_title(dataset)}, {PROTOCOL_TITLES[protocol]}",
        _make_title(findings, dataset, first),
        format_value(best),
        _make_title(findings, dataset, other),
        format_value(second),
        f"{best / second - 1:+.1%}" if second else "",
        shown_interval,
        verdict,
    ]
    return [Text(cell, bold=column == 1) for column, cell in enumerate(cells)]


def _make_title(findings: Findings, dataset: str, model: str) -> str:
    title = TABLES[findings.name].variants[model].title.removesuffix(NOT_IN_PAPER)
    return title + ELSEWHERE * findings.is_elsewhere(dataset, model)
