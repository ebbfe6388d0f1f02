"""What the tables of runs in the documentation should say, by experiments/results.

A column of such a table names the data, the metric and the candidates (`Beauty NDCG@10, all`; the metric may stand in
the first header instead) or the minutes (`ML-1m, minutes`). A row names a model as the report does.
"""

import math
import re
from collections.abc import Iterator
from statistics import mean, median

from experiments.findings import Findings
from experiments.line_fields import FINISHED
from experiments.plan import Plan
from experiments.results import Results
from experiments.tables import DATASETS, NOT_IN_PAPER, TABLES
from support.paths import ROOT

LINES = {key: line for key, line in Results(ROOT / "experiments/results").read().items() if line["status"] == FINISHED}
PLAN = Plan(DATASETS)
RUNS = Findings("table2", PLAN, LINES)
TITLES = {variant.title.removesuffix(NOT_IN_PAPER): key for key, variant in TABLES["table2"].variants.items()}
PLANNED = {job.key for job in PLAN.make_all_jobs(TABLES)}
PROTOCOLS = {"popular": "popular", "uniform": "uniform", "all": "full"}
COLUMN = re.compile(r"(Beauty|ML-1m)(?: ([A-Z]+(?:@\d+)?))?, (popular|uniform|all|minutes)")
TABLE = re.compile(r"^(\|.*)\n\|[-:| ]+\|\n((?:\|.*\n)+)", re.MULTILINE)


def compute_numbers(dataset: str, model: str, metric: str, ranked_among: str) -> list[float]:
    """The numbers of a cell: the mean over the seeds and, among popular items, what the paper has."""
    if ranked_among == "minutes":
        return [median(line["wall_seconds"] / 60 for line in RUNS.runs[dataset, model])]
    values = [mean(RUNS.list_values(dataset, model, metric, PROTOCOLS[ranked_among]))]
    published = RUNS.find_published(dataset, model, metric) if ranked_among == "popular" else math.nan
    return values if math.isnan(published) else [*values, published]


def format_numbers(numbers: list[float]) -> str:
    return " ".join(f"{number:.4f}" if index == 0 else f"({number:.4f})" for index, number in enumerate(numbers))


def find_cells(text: str) -> Iterator[tuple[str, list[float]]]:
    """Yields the text of each cell that a run has, and its numbers."""
    for header, body in TABLE.findall(text):
        first, *columns = [cell.strip() for cell in header.strip("|").split("|")]
        for row in body.splitlines():
            title, *cells = [cell.strip() for cell in row.strip("|").split("|")]
            for column, cell in zip(columns, cells, strict=True):
                if named := COLUMN.fullmatch(column):
                    dataset, metric, ranked_among = named.groups()
                    metric = (metric or first).lower()
                    yield cell, compute_numbers(dataset.lower(), TITLES[title.strip("*")], metric, ranked_among)


def is_rounded(text: str, number: float) -> bool:
    return abs(float(text) - number) <= 0.5001 * 10 ** -len(text.partition(".")[2])


def check_tables(text: str) -> list[str]:
    """Returns what is wrong with the tables of a page."""
    wrong = []
    for cell, numbers in find_cells(text):
        texts = re.findall(r"\d+(?:\.\d+)?", cell)
        if len(texts) != len(numbers) or not all(map(is_rounded, texts, numbers)):
            wrong.append(f"{cell} instead of {format_numbers(numbers)}")
    return wrong


def check_counts(text: str) -> list[str]:
    """Returns what is wrong with a page's sentence on the runs of the paper's tables and figures."""
    missing, count = len(PLANNED - LINES.keys()), len(PLANNED)
    sentences = " ".join(text.split())
    right = {f"{missing} of the {count} runs", f"{count - missing} of its {count} runs are finished"}
    return [] if any(sentence in sentences for sentence in right) else [f"{missing} of {count} runs are missing"]
