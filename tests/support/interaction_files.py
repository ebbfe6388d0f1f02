"""Files of interactions in every layout, and what they hold by a plain reading."""

import csv
import functools
import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet
import pytest

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading import blocks, conversion
from bert4rec_tf.foundation.errors import UserError

HEADER = ("user_id", "item_id", "timestamp")
ROWS = [
    ("ann", "lamp", 30),
    ("bob", "lamp", 10),
    ("ann", "a b", 20),
    ("bob", "007", 10),
    ("ann", "7", 20),
    ("cat", "7", 5),
]


def plainly(rows, min_user=1, min_item=1):
    """Users' items by time and row, after the filter; by hand."""
    of_users, of_items = {}, {}
    for user, item, _ in rows:
        of_users[user] = of_users.get(user, 0) + 1
        of_items[item] = of_items.get(item, 0) + 1
    kept = {}
    for user, item, time in rows:
        if of_users[user] >= min_user and of_items[item] >= min_item:
            kept.setdefault(user, []).append((time, item))
    kept = {user: actions for user, actions in kept.items() if len(actions) >= min_user}
    return {user: [item for _, item in sorted(actions, key=lambda action: action[0])] for user, actions in kept.items()}


def histories(sequences):
    return {user: sequences.vocabulary.decode(sequences[row]) for row, user in enumerate(sequences.users)}


def as_text(rows, separator, header=None, end="\n"):
    lines = [separator.join(header)] if header else []
    return "".join(f"{line}{end}" for line in lines + [separator.join(map(str, row)) for row in rows]).encode()


def as_csv(rows, header=HEADER):
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator="\n").writerows([header, *rows])
    return file.getvalue().encode()


def as_json(rows, names=HEADER):
    return "".join(json.dumps(dict(zip(names, row))) + "\n" for row in rows).encode()


def as_literals(rows, names=HEADER):
    def literal(value):
        return "u" + ascii(value) if isinstance(value, str) else repr(value)

    def line(row):
        return "{" + ", ".join(f"u'{name}': {literal(value)}" for name, value in zip(names, row)) + "}\n"

    return "".join(map(line, rows)).encode()


def as_parquet(rows, names=HEADER):
    file = io.BytesIO()
    pyarrow.parquet.write_table(pa.table(dict(zip(names, map(list, zip(*rows))))), file)
    return file.getvalue()


def rated(rows):
    return [(user, item, 3, time) for user, item, time in rows]


WITHOUT_HEADER = {"columns": "user,item,_,time"}
LAYOUTS = {
    "ratings.csv": as_csv,
    "semicolons.csv": lambda rows: as_text(rows, ";", HEADER),
    "ratings.tsv": lambda rows: as_text(rows, "\t", HEADER),
    "u.data": lambda rows: as_text(rated(rows), "\t"),
    "ratings.dat": lambda rows: as_text(rated(rows), "::"),
    "recbole.inter": lambda rows: as_text(rows, "\t", ("user_id:token", "item_id:token", "timestamp:float")),
    "reviews.json": lambda rows: as_json(rows, ("reviewerID", "asin", "unixReviewTime")),
    "reviews.jsonl": as_json,
    "steam.json": lambda rows: as_literals(rows, ("username", "product_id", "date")),
    "ratings.parquet": as_parquet,
}


def write(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def options_of(name):
    """What must be said of a layout."""
    return WITHOUT_HEADER if name in ("u.data", "ratings.dat") else {}


def read(path, block_size=blocks.BLOCK_SIZE, **options):
    """Converts a file. `block_size`: bytes that are read at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "read_blocks", functools.partial(blocks.read_blocks, block_size=block_size))
        return conversion.convert(Interactions(path, **options))


def refusal(path, block_size=blocks.BLOCK_SIZE, **options):
    """The line with which a file is refused."""
    with pytest.raises(UserError) as refused:
        read(path, block_size, **options)
    assert "\n" not in str(refused.value)
    return str(refused.value)
