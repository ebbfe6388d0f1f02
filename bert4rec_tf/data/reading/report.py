"""What a conversion read, kept and skipped, and what the user should know of it."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bert4rec_tf.config.data_names import join_names, split_names
from bert4rec_tf.data.reading.rows import HEADER_AGAIN, Findings, Rows
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.foundation.warning import DataNote, DataWarning, warn

MAX_SHARE, MAX_MULTIPLE = 0.1, 5
"""More than this share of all actions, and than this multiple of the average other user's, are too many for one."""

MAX_EQUAL, MAX_IN_ORDER = 0.5, 0.95
MANY_REPEATED_ROWS = 0.05
MIN_DOUBTED = 30
"""With fewer actions, shares of them are chance."""

ORDERED_ACTIONS, MIN_ORDERED = 100_000, 1_000
"""Actions that are looked at for an order of their ids, and how many of them must follow another of their user."""

MAX_SHOWN = 8


@dataclass(frozen=True)
class Report:
    """What a conversion read, kept and skipped.

    Attributes:
        path, columns: the files as the user named them, and the columns of users, items and times.
        times: what the times mean; empty if there are none.
        read, kept: users, items and actions before and after repeated rows and the filter.
        bounds: the least actions of users and of items.
        doubts: what to warn of before any other.
        notes: what else there was and may be a mistake: skipped rows, events, repeated actions.
        remarks: what is no mistake.
    """

    path: str
    columns: str
    times: str
    read: dict[str, int]
    kept: dict[str, int]
    bounds: Sequence[int]
    doubts: Sequence[str] = ()
    notes: Sequence[str] = ()
    remarks: Sequence[str] = ()

    def warn_of_doubts(self, sequences: Sequences, needs_order: bool = True) -> None:
        """Warns of the layout and of `list_doubts`. `needs_order`: whether the order of the actions matters."""
        for line in [*self.doubts, *list_doubts(sequences, needs_order)]:
            warn(f"{self.path}: {line}", DataWarning)

    def warn_of_notes(self, to_train: Sequences | None = None) -> None:
        """Says on the error stream what the report has on rows and, for data to train on, on ratings and users."""
        for line in [*self.notes, *([] if to_train is None else describe_fractions(to_train))]:
            warn(f"{self.path}: {line}", DataWarning)
        for line in [] if to_train is None else [*self.remarks, *describe_singles(to_train)]:
            warn(f"{self.path}: {line}", DataNote)

    def __str__(self) -> str:
        sizes_before, sizes_after = (
            ", ".join(f"{count:,} {name}" for name, count in counts.items()) for counts in (self.read, self.kept)
        )
        lines = [
            f"{self.path}: {self.columns}",
            *([f"times: {self.times}"] if self.times else []),
            *self.notes,
            *self.remarks,
            f"read: {sizes_before}",
            "kept: {} (users with at least {}, items with at least {} actions)".format(sizes_after, *self.bounds),
        ]
        return "\n".join(lines)


def describe_findings(reader: Rows) -> list[str]:
    """Returns lines on skipped rows, events, and ids that were met."""
    findings, event_column, kept_events = reader.findings, reader.layout.event, reader.options.events
    lines = [
        f"skipped {count:,} {'' if kind == HEADER_AGAIN else 'bad '}rows: {kind} (the first: {findings.firsts[kind]})"
        for kind, count in findings.skipped.items()
    ]
    if findings.events:
        counts = [f"{count:,} {event or '(empty)'}" for event, count in findings.events.most_common(MAX_SHOWN)]
        event_counts = ", ".join(counts) + ", ..." * (len(findings.events) > MAX_SHOWN)
        advice, event_names = "all count alike", [event for event, _ in findings.events.most_common() if event]
        if event_names:
            flags = f"--event_column={event_column}", f"--events={join_names(event_names[-1:])}"
            advice += f". {shlex.join(flags)} keeps these alone"
        lines.append(f"events ({event_column}): {event_counts}; {f'kept: {kept_events}' if kept_events else advice}")
        kinds = split_names(kept_events) if kept_events else []
        lines += [f"no row has the event {kind!r} of --events" for kind in kinds if kind not in findings.events]
    if findings.other_forms:
        lines.append(
            f"{len(findings.other_forms):,} ids were not in Unicode's form NFC, and are the same as those that are "
            f"(the first: {min(findings.other_forms)!r})"
        )
    if findings.with_blanks:
        lines.append(
            f"{len(findings.with_blanks):,} ids have blanks around them, which files of separated columns and commands "
            f"lose (the first: {min(findings.with_blanks)!r}); in pandas: frame[column].str.strip()"
        )
    return lines


def describe_cut_rows(findings: Findings, items: Sequence[str], counts: np.ndarray) -> list[str]:
    """Returns lines on rows without a line end whose item occurs once and has a shorter id than all others."""
    shortest_ids = sorted(items, key=len)[:2] if findings.unended else []
    return [
        f"{place} has no line end, and no other row has its item {item!r}: the file may be cut short"
        for item, place in findings.unended.items()
        if shortest_ids[:1] == [item] and len(item) < len(shortest_ids[-1]) and counts[list(items).index(item)] == 1
    ]


def describe_repeats(number: int, first: tuple[str, str]) -> list[str]:
    """Returns a line on rows that repeat user, item and time of an earlier one. `first`: its user and item."""
    return [
        f"dropped {number:,} rows that repeat user, item and time of another (the first: user {first[0]!r}, item "
        f"{first[1]!r}); --duplicates=keep keeps them"
    ]


def find_order_of_ids(sequences: Sequences) -> float:
    """Returns the share of actions after a user's first whose item's id is at least that of the one before.

    As texts or as numbers, whichever is more. It is about half where rows are not sorted; 0 for few actions.
    """
    actions = np.arange(min(sequences.num_actions, ORDERED_ACTIONS))
    users = np.searchsorted(sequences.splits, actions, side="right")
    is_next = users[1:] == users[:-1]
    if is_next.sum() < MIN_ORDERED:
        return 0.0
    items, rows = np.unique(sequences.items[:ORDERED_ACTIONS], return_inverse=True)
    ids = np.array(sequences.vocabulary.decode(items), str)
    shares = []
    for keys in (ids, *([ids.astype(np.float64)] if np.char.isdecimal(ids).all() else [])):
        places = np.unique(keys, return_inverse=True)[1][rows]
        shares.append(np.mean((places[1:] >= places[:-1])[is_next]))
    return float(max(shares))


def list_doubts(sequences: Sequences, needs_order: bool = True) -> list[str]:
    """Returns lines on a user who may be many.

    If the order matters, also on one that is the file's, and on actions that may be logged twice.
    """
    lengths, lines = sequences.lengths, []
    peak, total = lengths.max(initial=0), lengths.sum()
    if (
        total >= MIN_DOUBTED
        and peak > MAX_SHARE * total
        and peak * (len(lengths) - 1) > MAX_MULTIPLE * (total - peak) > 0
    ):
        user = sequences.users[lengths.argmax()]
        lines.append(f"user {user!r} has {peak / total:.0%} of all actions; this may stand for users who are not known")
    if not needs_order:
        return lines
    is_next = np.ones(total, bool)
    is_next[sequences.splits[:-1][lengths > 0]] = False
    values = sequences.items if sequences.times is None else sequences.times.values
    if (num_next := int(is_next.sum())) < MIN_DOUBTED:
        return lines
    share = int(np.count_nonzero(is_next[1:] & (values[1:] == values[:-1]))) / num_next
    fact = f"{share:.0%} of the actions after a user's first have the {{}} of the one before"
    if sequences.times is None and share > MANY_REPEATED_ROWS:
        advice = "If they were logged twice, drop them; without times they are kept"
        lines.append(f"{fact.format('item')}. {advice}")
    if sequences.times is None and find_order_of_ids(sequences) > MAX_IN_ORDER:
        lines.append(
            "there are no times, and the items of each user are in the order of their ids: these rows are sorted, so "
            "the next one says nothing, and all metrics are about the sorting. Ask for the times"
        )
    if sequences.times is not None and share > MAX_EQUAL:
        lines.append(f"{fact.format('time')}, so that the rows alone order them")
    return lines


def describe_fractions(sequences: Sequences) -> list[str]:
    """Returns lines on users and items whose ids all are texts such as 7.0."""
    return [
        f"the ids of all {role} end in .0, as {ids[0]!r}, which is another id than {ids[0][:-2]!r}. pandas writes "
        "whole numbers so if some are missing"
        for role, ids in (("users", sequences.users), ("items", sequences.vocabulary.items))
        if len(ids) and all(text.endswith(".0") for text in ids)
    ]


def describe_singles(sequences: Sequences) -> list[str]:
    """Returns lines on users with one action, and on a single user."""
    lines = [f"all actions are of one user, {user!r}" for user in sequences.users[:1] if sequences.num_users == 1]
    number = int(np.count_nonzero(sequences.lengths == 1))
    if not number:
        return lines
    return [
        *lines,
        f"{number:,} of {sequences.num_users:,} users have one action: they get recommendations, but are neither "
        "trained on as pairs nor measured",
    ]
