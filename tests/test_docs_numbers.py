"""The tables of runs in the documentation, cell by cell, against experiments/results."""

import re

import pytest
from support.docs_numbers import check_counts, check_tables, find_cells
from support.paths import ROOT

CELLS = {
    "README.md": 32,
    "docs/results.md": 28,
    "experiments/journal/paper.md": 100,
}
"""Page -> at least how many cells of runs it has."""
COUNTS = ("README.md", "experiments/journal/paper.md")
TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in CELLS}

each_page = pytest.mark.parametrize("page", CELLS)


@each_page
def test_the_numbers_are_those_of_the_results(page):
    assert check_tables(TEXTS[page]) == []
    assert len(list(find_cells(TEXTS[page]))) >= CELLS[page]


@pytest.mark.parametrize("page", COUNTS)
def test_the_missing_runs_are_counted(page):
    assert check_counts(TEXTS[page]) == []
    assert check_counts(TEXTS[page].replace("231", "230"))


@each_page
def test_any_wrong_number_is_found(page):
    """Each number of each cell in turn gets another last digit."""
    for cell, _ in find_cells(TEXTS[page]):
        for number in re.finditer(r"\d+(?:\.\d+)?", cell):
            digit = number.end() - 1
            wrong = f"{cell[:digit]}{(int(cell[digit]) + 5) % 10}{cell[digit + 1 :]}"
            assert check_tables(TEXTS[page].replace(f"| {cell} |", f"| {wrong} |")), cell
