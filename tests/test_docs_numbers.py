"""The numbers in README.md, docs/results.md and docs/quality.md, one by one, against experiments/results.

Each check takes a page's text and returns what is wrong with it, so that a wrong number can be planted.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import pytest
from support.docs_numbers import (
    BOTH,
    FINDINGS,
    LINES,
    OF_QUALITY,
    PLANNED,
    PROSE,
    TABLES_OF_RESULTS,
    beside,
    get,
    minutes,
    shown,
)
from support.paths import ROOT

from experiments.tables import NOT_IN_PAPER, TABLES

README, MEASURED, QUALITY, TRAINING = (
    (ROOT / name).read_text(encoding="utf-8")
    for name in ("README.md", "docs/results.md", "docs/quality.md", "docs/training.md")
)
SHOWN = {line["key"] for one in FINDINGS.values() for lines in one.runs.values() for line in lines}

NUMBER = re.compile(
    r"(?<![\d.])\.\d{3,4}\b"
    r"|(?<![\d.])[\d.]*\d(?=(?: to [\d.]*\d)? (?:%|GB)(?!\w))"
    r"|(?<![\d.])\d+(?=(?: to \d+)? minutes)"
)
"""A metric, a percentage, a number of minutes or of gigabytes."""


def is_rounded(text: str, value: float | str) -> bool:
    """Whether a text is the value, rounded to the text's digits."""
    if isinstance(value, str):
        return text == value
    digits = len(text.partition(".")[2])
    return abs(float(text) - value) <= 0.5001 * 10**-digits


def compare_numbers(place: str, texts: list[str], values: list[float | str]) -> list[str]:
    if len(texts) != len(values):
        return [f"{place}: {len(texts)} numbers instead of {len(values)}: {texts}"]
    return [f"{place}: {text} instead of {value}" for text, value in zip(texts, values) if not is_rounded(text, value)]


def split_sections(text: str) -> Iterator[tuple[str, str, list[list[str]]]]:
    """Yields the heading of each section, its sentences, and the cells of its tables' rows."""
    for section in re.split(r"^(?=#)", text, flags=re.MULTILINE):
        heading, _, content = section.partition("\n")
        lines = content.splitlines()
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
        sentences = "\n".join(line for line in lines if not line.startswith(("|", "    ")))
        yield heading, sentences, [row for row in rows if not row[0].startswith("---")]


def check_prose(text: str) -> list[str]:
    wrong = []
    for heading, sentences, _ in split_sections(text):
        wrong += compare_numbers(heading, NUMBER.findall(sentences), PROSE.get(heading, []))
    return wrong


def check_tables(text: str) -> list[str]:
    wrong = []
    for heading, _, rows in split_sections(text):
        expected = TABLES_OF_RESULTS.get(heading, [])
        rows = [row for row in rows if row[0] not in HEADERS]
        if len(rows) != len(expected):
            wrong.append(f"{heading}: {len(rows)} rows instead of {len(expected)}")
        wrong += [
            f"{heading}: {row} instead of {cells}" for row, cells in zip(rows, expected) if row[: len(cells)] != cells
        ]
    return wrong


HEADERS = ("", "ranked among", "metric", "model", "among", "N")
"""The first cells of the tables' headers."""


def check_counts(text: str) -> list[str]:
    """How many runs are finished and missing, in the sentences of "What is not known"."""
    sentences = next(sentences for heading, sentences, _ in split_sections(text) if heading == "## What is not known")
    missing = [dataset for key, dataset in PLANNED.items() if key not in LINES]
    expected = [len(PLANNED), len(PLANNED) - len(missing), len(missing)]
    for dataset in BOTH:
        expected += [missing.count(dataset), list(PLANNED.values()).count(dataset)]
    expected += [missing.count(dataset) for dataset in ("steam", "ml-20m")]
    expected.append(len(SHOWN - PLANNED.keys()))
    found = list(map(int, re.findall(r"(?<![-\w])\d+(?!\w)(?!m)", re.sub(r"M\w+-\d+m|Table \d", "", sentences))))
    return [] if found == expected else [f"counts {found} instead of {expected}"]


def check_results(text: str) -> list[str]:
    return [*check_prose(text), *check_tables(text), *check_counts(text)]


def check_readme(text: str) -> list[str]:
    titles = {variant.title.removesuffix(NOT_IN_PAPER): key for key, variant in TABLES["table2"].variants.items()}
    (section,) = (section for section in split_sections(text) if section[0] == "## Results")
    _, sentences, (_, *rows) = section
    wrong = compare_numbers("README", NUMBER.findall(sentences), [])
    if len(rows) != 8:
        wrong.append(f"README: {len(rows)} rows")
    for title, *cells in rows:
        model = titles[title]
        expected = [shown(get(dataset, model, "full")) for dataset in BOTH]
        for dataset in BOTH:
            published = FINDINGS["table2"].find_published(dataset, model, "ndcg@10")
            popular = get(dataset, model)
            expected.append(shown(popular) if math.isnan(published) else beside(popular, published))
        wrong += [] if cells == expected else [f"README, {title}: {cells} instead of {expected}"]
    if f"{len(PLANNED.keys() - LINES.keys())} of the {len(PLANNED)} runs" not in sentences:
        wrong.append("README: the number of missing runs")
    return wrong


def check_quality(text: str) -> list[str]:
    return compare_numbers("quality.md", re.findall(r"(\.\d{4})°", text), OF_QUALITY)


# The tests

PAGES = {
    "README.md": (README, check_readme),
    "docs/results.md": (MEASURED, check_results),
    "docs/quality.md": (QUALITY, check_quality),
}
each_page = pytest.mark.parametrize("page", PAGES)


@each_page
def test_the_numbers_are_those_of_the_results(page):
    text, check = PAGES[page]
    assert check(text) == []


def list_numbers(page: str) -> list[re.Match]:
    """The numbers that a page must not have wrong: all metrics and percentages of sentences and tables."""
    text = PAGES[page][0]
    if page == "docs/quality.md":
        return list(re.finditer(r"\.\d{4}(?=°)", text))
    if page == "README.md":
        text = re.sub(r"^(.*?)(?=^## Results)", lambda part: "x" * len(part[0]), text, flags=re.DOTALL | re.MULTILINE)
    headers = "|".join(HEADERS)
    without_code = re.sub(
        rf"`[^`\n]*`|^    .*$|^\| (?:{headers}) \|.*$", lambda part: "x" * len(part[0]), text, flags=re.MULTILINE
    )
    return list(NUMBER.finditer(without_code))


@each_page
def test_any_wrong_number_is_found(page):
    """Each number in turn gets another last digit."""
    text, check = PAGES[page]
    numbers = list_numbers(page)
    assert len(numbers) >= {"README.md": 40, "docs/results.md": 300, "docs/quality.md": 7}[page]
    for number in numbers:
        last = number.end() - 1
        planted = f"{text[:last]}{(int(text[last]) + 5) % 10}{text[last + 1 :]}"
        assert check(planted), f"{number[0]} in {text[number.start() - 60 : number.end() + 20]!r}"


def test_trials_are_called_trials():
    """A number that no run has is in a paragraph or point that says where it comes from."""
    for heading, sentences, _ in split_sections(MEASURED):
        parts = re.split(r"\n\n|\n(?=- )", sentences)
        literals = {value for value in PROSE.get(heading, []) if isinstance(value, str) and value.startswith(".")}
        for part in parts:
            if literals & set(NUMBER.findall(part)):
                assert re.search(r"\b[Tt]rials?\b|public", part), part


@dataclass(frozen=True)
class Timed:
    """A preset whose time is that of runs in Table 2."""

    dataset: str
    model: str
    preset: str
    variant: str


TIMED = [
    Timed(dataset, variant.model, variant.preset or "fast", key)
    for dataset in BOTH
    for key, variant in TABLES["table2"].variants.items()
    if not variant.changes and FINDINGS["table2"].runs[dataset, key]
]


@pytest.mark.parametrize("timed", TIMED, ids=lambda one: f"{one.dataset}-{one.model}-{one.preset}")
def test_the_time_of_a_preset_is_the_median_of_its_seeds(timed):
    (row,) = re.findall(rf"^\| `{timed.preset}` \| {timed.model} \| ([\d.]+) \| ([\d.]+) \|", TRAINING, re.MULTILINE)
    text = row[BOTH.index(timed.dataset)]
    assert is_rounded(text, median(minutes(timed.dataset, timed.variant))), text
