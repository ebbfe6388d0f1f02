"""A report's parts, and the two ways they are written: Markdown and HTML."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Text:
    """What stands in a cell.

    Attributes:
        text: plain.
        bold, underlined: how it is shown.
    """

    text: str
    bold: bool = False
    underlined: bool = False


Cell = Text | str


@dataclass(frozen=True)
class Grid:
    """A table: its first column names the rows.

    Attributes:
        header: one cell per column.
        rows: cells, as many as in the header.
        caption: above it.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """A table or figure of the paper, as it was found here.

    Attributes:
        title: its heading.
        paragraphs: plain text.
        grids: tables.
        pictures: file names beside the report, with what they show.
    """

    title: str
    paragraphs: Sequence[str] = ()
    grids: Sequence[Grid] = ()
    pictures: Sequence[tuple[str, str]] = field(default_factory=tuple)


def percent(share: float) -> str:
    """Returns a share as three digits of percent, without zeros that say nothing."""
    return f"{100 * share:.3g} %"


def ranked(values: Sequence[float | None], shown: Sequence[str]) -> list[Cell]:
    """Returns the cells of a row: the best bold, the second best underlined; equal ones alike."""
    known = sorted({value for value in values if value is not None}, reverse=True)
    best, second = (*known, None, None)[:2]
    return [
        text if value is None else Text(text, value == best and len(known) > 1, value == second)
        for value, text in zip(values, shown, strict=True)
    ]


def markdown(title: str, sections: Sequence[Section]) -> str:
    """Returns the report as Markdown."""
    parts = [f"# {title}"]
    for section in sections:
        parts += [f"## {section.title}", *section.paragraphs]
        for grid in section.grids:
            if grid.caption:
                parts.append(f"**{grid.caption}**")
            parts.append(_markdown_grid(grid))
        parts += [f"![{shown}]({name})" for name, shown in section.pictures]
    return "\n\n".join(parts) + "\n"


def _markdown_grid(grid: Grid) -> str:
    rule = ["---", *["---:"] * (len(grid.header) - 1)]
    rows = [list(grid.header), rule, *([_markdown_cell(cell) for cell in row] for row in grid.rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _markdown_cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return cell.replace("|", "\\|")
    text = cell.text.replace("|", "\\|")
    text = f"<u>{text}</u>" if cell.underlined else text
    return f"**{text}**" if cell.bold else text


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem }
table { border-collapse: collapse; display: block; margin: 1rem 0; overflow-x: auto }
caption { font-weight: 600; text-align: left }
th, td { border-bottom: 1px solid #ccc; padding: .25rem .6rem; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
img { max-width: 100% }
"""


def page(title: str, sections: Sequence[Section]) -> str:
    """Returns the report as one HTML page, which needs nothing but the pictures beside it."""
    parts = [f"<h1>{html.escape(title)}</h1>"]
    for section in sections:
        parts.append(f"<h2>{html.escape(section.title)}</h2>")
        parts += [f"<p>{html.escape(paragraph)}</p>" for paragraph in section.paragraphs]
        parts += [_html_grid(grid) for grid in section.grids]
        parts += [
            f'<p><img src="{html.escape(name, quote=True)}" alt="{html.escape(shown, quote=True)}"></p>'
            for name, shown in section.pictures
        ]
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(parts) + "\n</body></html>\n"


def _html_grid(grid: Grid) -> str:
    caption = f"<caption>{html.escape(grid.caption)}</caption>" if grid.caption else ""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in grid.header)
    rows = "\n".join("<tr>" + "".join(f"<td>{_html_cell(cell)}</td>" for cell in row) + "</tr>" for row in grid.rows)
    return f"<table>{caption}<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>"


def _html_cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return html.escape(cell)
    text = html.escape(cell.text)
    text = f"<u>{text}</u>" if cell.underlined else text
    return f"<b>{text}</b>" if cell.bold else text
