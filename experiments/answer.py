"""The report's first section: which model ranks best, by how much, and whether that can be chance."""

import math
from typing import NamedTuple

from bert4rec_tf.evaluation.metrics import PROTOCOLS
from experiments.findings import Findings
from experiments.grids import ELSEWHERE, NOT_RUN, PROTOCOL_TITLES, Grid, Text, shown, title_of
from experiments.tables import MODELS, NOT_IN_PAPER, TABLES

METRIC = "ndcg@10"
OURS = "bert4rec"
STANDARD_ERRORS = 2.0
"""A lead of more than so many is called certain: chance alone gives it in fewer than one of twenty comparisons."""

HEADER = (
    "",
    "best",
    "NDCG@10",
    "second",
    "NDCG@10",
    "lead",
    "certain",
    "best of the paper's nine",
    "BERT4Rec",
    "its place",
)


class Lead(NamedTuple):
    """How far the best model of one protocol is above the second.

    Attributes:
        share: the difference divided by the second's value.
        standard_errors: the difference in standard errors, at least.
    """

    share: float
    standard_errors: float

    @property
    def is_certain(self) -> bool:
        return self.standard_errors > STANDARD_ERRORS


def lead(best: float, second: float, users: int) -> Lead:
    """Compares two means over the same users of a metric between 0 and 1.

    The variance of numbers between 0 and 1 with mean m is at most m (1 - m). Two models find the same users easy, so
    the difference varies less than between different users. Both make the standard error here larger than it is.
    """
    largest = math.sqrt((best * (1 - best) + second * (1 - second)) / users)
    return Lead(_ratio(best, second) - 1, _ratio(best - second, largest))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.inf


def sentences(found: Findings) -> list[str]:
    """Says how to read `grid`. `found`: Table 2."""
    if not found.run_on():
        return [f"Table 2: {NOT_RUN}."]
    return [
        "Which model ranks best on the test items, by NDCG@10, under each way to choose what a target is ranked among. "
        "The first is the paper's. “Its place” is that of BERT4Rec at its preset among all columns of Table 2.",
        f"A lead is called certain if it is more than {STANDARD_ERRORS:g} standard errors. The standard error is taken "
        "as large as it can be for such means, so a certain lead would also be one in a paired test. It covers the "
        "choice of users, not that of the seed; Table 2 has the deviation over seeds where there are several.",
        "Popular candidates reward models that rank popular items low, so compare the lines of a data set before you "
        "choose a model: among all items is what a recommender does.",
    ]


def grid(found: Findings) -> Grid:
    """Returns a row for each data set and protocol that has two models or more. `found`: Table 2."""
    rows = [
        row
        for dataset in found.run_on()
        for protocol in PROTOCOLS
        if (row := _row(found, dataset, protocol)) is not None
    ]
    return Grid(HEADER, rows)


def _row(found: Findings, dataset: str, protocol: str) -> list[Text] | None:
    means = {model: found.mean(dataset, model, METRIC, protocol) for model in found.variants(dataset)}
    values = {model: value for model, value in means.items() if value is not None}
    if len(values) < 2:
        return None
    order = sorted(values, key=values.__getitem__, reverse=True)
    first, second = order[:2]
    ahead = lead(values[first], values[second], _users(found, dataset, first))
    published = [model for model in order if model in MODELS]
    place = f"{order.index(OURS) + 1} of {len(order)}" if OURS in values else ""
    cells = [
        f"{title_of(dataset)}, {PROTOCOL_TITLES[protocol]}",
        _title(found, dataset, first),
        shown(values[first]),
        _title(found, dataset, second),
        shown(values[second]),
        f"{ahead.share:+.1%}",
        "yes" if ahead.is_certain else "no",
        _title(found, dataset, published[0]) if published else NOT_RUN,
        shown(values.get(OURS)),
        place,
    ]
    return [Text(cell, bold=column == 1) for column, cell in enumerate(cells)]


def _title(found: Findings, dataset: str, model: str) -> str:
    title = TABLES[found.name].variants[model].removesuffix(NOT_IN_PAPER)
    return title + ELSEWHERE * found.is_elsewhere(dataset, model)


def _users(found: Findings, dataset: str, model: str) -> int:
    _, line = found.runs[dataset, model][0]
    return line["users"]
