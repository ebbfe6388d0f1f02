"""Finds the layout of a file of interactions from its first rows, or asks."""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading import records, tables
from bert4rec_tf.data.reading.blocks import BOM, PARQUET_MARK, refuse_packed
from bert4rec_tf.data.reading.columns import (
    ANY_BLANKS,
    COMMON_NAMES,
    JSON,
    LITERALS,
    NO_TIME,
    PARQUET,
    QUOTED_BLANKS,
    SAMPLE_ROWS,
    TAB,
    TEXT,
    TIME_NAMES,
    UNQUOTED,
    Columns,
    Layout,
    find_known_columns,
)
from bert4rec_tf.data.reading.rows import shorten
from bert4rec_tf.data.reading.text import NEVER_CLOSED, refuse_lone_quotes, split_lines
from bert4rec_tf.foundation.errors import UserError

SAMPLE_BYTES = 1 << 20
FIELD_IN_QUOTES, SEVERAL_BLANKS = re.compile(r'(^|[ \t])"'), re.compile(r"^ |  |\t")
SEPARATORS = (TAB, "::", ",", ";")
OTHER_SEPARATORS = ("|", "^", "~", "#", " ")
"""What is not tried, but named in a message if it splits all lines alike."""

MAX_TITLE_LINES = 20
IGNORED = "_"
MAYBE_HEADER = "its first line, 0 and 1, may be a header that pandas wrote, and counts as an action"
TAKEN_AS_HEADER = "its first line, {}, counts as a header that pandas wrote, and not as an action"
TURN_INTO_ROWS = (
    "awk '{for (i = 2; i <= NF; i++) print $1, $i}' FILE > rows.txt; then read rows.txt, whose lines are `user item`"
)


def find_layout(path: Path, options: Interactions, start: bytes) -> Layout:
    """Returns the layout of a file. Raises UserError if it must ask for a column, the separator or a header.

    `start`: the file's first bytes, unpacked.
    """
    columns = Columns(str(path), options)
    refuse_packed(path, start)
    if (options.columns or options.separator) and re.match(rb"(\xef\xbb\xbf)?\s*\{|PAR1", start):
        raise UserError(f"{path}: its columns have names; leave out --columns and --separator, which are for texts")
    if start.startswith(PARQUET_MARK):
        if path.suffix == ".gz":
            raise UserError(f"{path}: Parquet is packed already and is not read from .gz; unpack it")
        head = tables.read_head(path, options)
        layout = columns.layout_from_sample(PARQUET, head.column_names, tables.read_sample(head))
        layout = tables.check_events(layout, head.schema, options, str(path))
        return replace(layout, integer_types=tables.list_integer_types(head.schema))
    lines = re.split(r"\r\n|\r|\n", start.removeprefix(BOM).decode("utf-8", "replace"))
    if len(start) == SAMPLE_BYTES and len(lines) > 1:
        lines.pop()  # it may be cut
    entries = [(number, line) for number, line in enumerate(lines, 1) if line.strip(" \t")][:SAMPLE_ROWS]
    separator = options.separator and options.separator.replace("\\t", "\t")
    if entries and (excel := re.fullmatch("sep=(.)", entries[0][1].strip('" '))):  # Excel writes and reads this line
        separator, entries = separator or excel[1], entries[1:]
    if not entries:
        raise UserError(f"{path}: the file is empty")
    first_line, lines = entries[0][0], [line for _, line in entries]
    if re.match(r"\s*\[\s*(\{|$)", lines[0]):
        raise UserError(
            f"{path}, line {first_line}: begins a JSON array; write its objects one per line, without brackets"
        )
    if lines[0].lstrip().startswith("{"):
        return _find_record_layout(columns, lines, first_line)
    header_line = _find_header_line(entries[: MAX_TITLE_LINES + 1], options)
    if not options.columns and header_line not in (None, first_line):
        raise UserError(f"{path}, line {header_line}: names the columns; remove the lines above this header")
    separator = separator or _find_separator(path, lines)
    if separator == ANY_BLANKS and any(map(FIELD_IN_QUOTES.search, lines)):
        if any(map(SEVERAL_BLANKS.search, lines)):
            raise UserError(f"{path}: quotes between several blanks cannot be read; write one between the columns")
        separator = QUOTED_BLANKS
    if separator == TAB:
        refuse_lone_quotes("\n".join(lines).encode(), str(path))
    rows = split_lines(lines, separator)
    if separator not in UNQUOTED and len(rows) == 1 < len(lines) and lines[0].count('"') % 2:
        raise UserError(f"{path}, line {first_line}: {NEVER_CLOSED}")
    if len(rows[0]) < 2:
        only_field = shorten(rows[0][0].strip())
        raise UserError(
            f"{path}, line {first_line}: expected at least two columns, found {only_field!r}; "
            f"{_advise_separator(lines)}"
        )
    return _find_text_layout(columns, separator, rows, first_line)


def _find_header_line(entries: Sequence[tuple[int, str]], options: Interactions) -> int | None:
    """Returns the number of the first line that names users and items, as the options or commonly; None if none."""
    requests = {"user": options.user_column, "item": options.item_column}
    for number, line in entries:
        for row in (split_lines([line], text)[0] for text in (*SEPARATORS, "|")):
            places = _find_places(row)
            if all(role in places if name is None else name in row for role, name in requests.items()):
                return number
    return None


def _advise_separator(lines: Sequence[str]) -> str:
    for text in (*SEPARATORS, *OTHER_SEPARATORS):
        widths = set(map(len, split_lines(lines, text)))
        if len(widths) == 1 and max(widths) > 1:
            return f'add --separator="{text}"'.replace("\t", "\\t")
    return "remove the lines above the header, or name the character between columns with --separator"


def _find_text_layout(columns: Columns, separator: str, rows: list[list[str]], first_line: int) -> Layout:
    """`rows`: the first rows, split; perhaps a header before them."""
    options, path = columns.options, columns.source
    first = [field.strip() for field in rows[0]]
    width = len(first)
    places = _find_places(first)
    requests = options.user_column, options.item_column, options.time_column, options.event_column
    has_header = len(places) == 2 or any(name not in (None, NO_TIME) for name in requests)
    is_numbered, names, doubts = False, first, tuple[str, ...]()
    if options.columns:
        names = [name.strip() for name in options.columns.split(",")]
        if len(names) != width:
            raise UserError(
                f"`columns` must name the {width} columns, of which the first row has {_show(first)}. Received: "
                f"columns={options.columns}"
            )
        if len(places) == 2 and any(places[role] != place for role, place in _find_places(names).items()):
            raise UserError(f"{path}: its first line is a header, {', '.join(first)[:200]}. Leave out --columns")
        names = [f"{name}{place}" if name == IGNORED else name for place, name in enumerate(names, 1)]
        if options.time_column is None and not find_known_columns(names, TIME_NAMES):
            columns = replace(columns, options=replace(options, time_column=NO_TIME))
        numbers = [field for field in first if field]  # by pandas, without names; an index has none
        is_numbered = width > 2 and bool(numbers) and numbers == list(map(str, range(len(numbers))))
        has_header = len(places) == 2 or is_numbered
        if is_numbered:
            doubts = (TAKEN_AS_HEADER.format(", ".join(first)),)
    elif not has_header:
        _require_pairs(path, rows, separator)
        names = ["user", "item"]
        doubts = (MAYBE_HEADER,) * (first == ["0", "1"])
    body = [row for row in rows[has_header:] if len(row) == width]
    sample = {name: [row[place].strip() for row in body] for place, name in enumerate(names)}
    layout = columns.layout_from_sample(TEXT, names, sample)
    may_repeat = has_header and not is_numbered and not options.is_published
    return replace(
        layout,
        separator=separator,
        skip=first_line + sum(field.count("\n") for field in rows[0]) if has_header else first_line - 1,
        has_header=has_header,
        integer_types=dict.fromkeys(names, "int64"),
        header_ids=(first[names.index(layout.user)], first[names.index(layout.item)]) if may_repeat else None,
        doubts=(*layout.doubts, *doubts),
    )


def _require_pairs(path: str, rows: list[list[str]], separator: str) -> None:
    """Raises UserError unless all rows are two whole numbers, as in published data: a user and an item."""
    widths = {len(row) for row in rows}
    are_whole = all(field.strip().lstrip("-").isdigit() for row in rows for field in row)
    if widths == {2} and are_whole:
        return
    if are_whole and len(widths) > 1 and separator in (ANY_BLANKS, ","):
        tool = TURN_INTO_ROWS if separator == ANY_BLANKS else TURN_INTO_ROWS.replace("awk", "awk -F,")
        raise UserError(
            f"{path}: seems to have one line per user, with a user and all of his items. That form is not read. Turn "
            f"it into one row per action: {tool.replace('FILE', path)}"
        )
    width, first_rows = len(rows[0]), "; row 2: ".join(map(_show, rows[:2]))
    names = ["user", "item", *[IGNORED] * (width == 4), "time", *[IGNORED] * width][:width]
    raise UserError(
        f"{path}: its first line names no known columns. Row 1: {first_rows}. If there is no header, say "
        f"what the columns are, such as --columns={','.join(names)} (with {IGNORED} for others); if the first line is "
        "a header, give --user_column, --item_column, --time_column"
    )


def _find_places(names: Sequence[str]) -> dict[str, int]:
    """Returns user and item -> the place of the first column with a common name for them, if there is one."""
    columns_by_role = {role: find_known_columns(names, common) for role, common in COMMON_NAMES.items()}
    return {role: list(names).index(columns[0]) for role, columns in columns_by_role.items() if columns}


def _show(row: Sequence[str]) -> str:
    return " | ".join(" ".join(shorten(field).split()) for field in row[:12])


def _find_separator(path: Path, lines: Sequence[str]) -> str:
    """Returns what separates the columns of all lines. Raises UserError if several characters may."""
    suffix, first = Path(path.name.removesuffix(".gz")).suffix.lower(), lines[0].strip()
    candidates = [text for text in ((TAB,) if suffix == ".tsv" else SEPARATORS) if text in first]
    candidates = [text for text in candidates if len(split_lines([first], text)[0]) > 1]
    if not candidates:
        return "," if suffix == ".csv" else ANY_BLANKS
    readings = {text: split_lines(lines, text) for text in candidates}
    has_equal_rows = {text: len(set(map(len, rows))) == 1 for text, rows in readings.items()}
    has_known_names = {text: len(_find_places(rows[0])) == 2 for text, rows in readings.items()}
    for fits in (has_equal_rows, has_known_names):
        candidates = [text for text in candidates if fits[text]] or candidates
    if len(candidates) == 1:
        return candidates[0]
    choices = [f'--separator="{text}" ({_show(readings[text][0])})'.replace("\t", "\\t") for text in candidates]
    raise UserError(f"{path}: its columns may be separated in several ways, and row 1 read as {' or '.join(choices)}")


def _find_record_layout(columns: Columns, lines: Sequence[str], number: int) -> Layout:
    """Returns the layout of records, whose columns are the keys of the first ones, in order of appearance."""
    for kind in (JSON, LITERALS):
        try:
            sample = [records.parse_record(kind, lines[0])]
        except ValueError:
            continue
        for line in lines[1:]:
            with contextlib.suppress(ValueError):  # named when all rows are read
                sample.append(records.parse_record(kind, line))
        names = list(dict.fromkeys(name for record in sample for name in record))
        texts = {
            name: ["" if (value := record.get(name)) is None else str(value) for record in sample] for name in names
        }
        return columns.layout_from_sample(kind, names, texts)
    raise UserError(f"{columns.source}, line {number}: neither a whole JSON object nor a Python dictionary")
