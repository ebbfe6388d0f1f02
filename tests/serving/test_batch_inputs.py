"""Telling histories from interactions."""

import gzip
import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.lines import Lines
from bert4rec_tf.serving import batch_inputs

KNOWN = Lines.from_texts([str(item) for item in range(1, 60)])


def ratings(separator=",", width=4):
    """Rows of users, items, ratings and times, some ratings and users named like items."""
    noise = random.Random(1)
    rows = [
        (str(user), str(noise.randint(1, 80)), str(noise.randint(1, 5)), str(964_000_000 + noise.randrange(10**6)))
        for user in range(1, 30)
        for _ in range(noise.randint(2, 9))
    ]
    noise.shuffle(rows)
    return "".join(separator.join(row[:width]) + "\n" for row in rows)


ACTIONS = {
    "MovieLens": ("ratings.csv", "userId,movieId,rating,timestamp\n" + ratings()),
    "a header alone": ("ratings.csv", "user,item\n"),
    "other order, and semicolons": ("ratings.csv", "timestamp;asin;reviewerID\n1;a;b\n"),
    "RecBole": ("data.inter", "user_id:token\titem_id:token\n1\t2\n"),
    "no header": ("ratings.csv", ratings()),
    "no header, two columns": ("ratings.csv", ratings(width=2)),
    "no header, two columns, one user twice": ("ratings.csv", "a,1\nb,2\nc,3\na,4\n"),
    "JSON lines": ("reviews.json", '{"reviewerID": "a", "asin": "b", "unixReviewTime": 1}\n'),
}


@pytest.mark.parametrize("name, content", ACTIONS.values(), ids=ACTIONS)
def test_one_action_per_row_is_refused(tmp_path, name, content):
    for path, written in (
        (tmp_path / name, content.encode()),
        (tmp_path / f"{name}.gz", gzip.compress(content.encode())),
    ):
        path.write_bytes(written)
        with pytest.raises(UserError, match="one action per row") as refusal:
            batch_inputs.read_histories(path, KNOWN)
        assert str(refusal.value).endswith(f"se --interactions={path} in place of --input")


def test_parquet_is_refused(tmp_path):
    path = tmp_path / "ratings.parquet"
    parquet.write_table(pa.table({"user": ["a"], "item": ["1"]}), path)
    with pytest.raises(UserError, match="has one action per row"):
        batch_inputs.read_histories(path, KNOWN)


HISTORIES = {
    "of any length": "ann,1,2,3\nbob,4\neve\n",
    "of one item": "".join(f"u{n},{n}\n" for n in range(1, 40)),
    "equally long": "".join(f"u{n},{n},7,9\n" for n in range(1, 40)),
    "of unknown items": "".join(f"u{n},x{n},y{n},z{n}\n" for n in range(1, 40)),
    "of one user": "u,1,2,3\n",
    "one": "ann,1\n",
    "without a line break at the end": "ann,1\nbob,2",
    "of items like times": "u1,1234567890,1\nu2,1234567890,2\n",
    "of items with other separators": '"a;b",1;2,3:4\nc,1|2\n',
    "of users without items": "ann\nbob\n",
}


@pytest.mark.parametrize("content", HISTORIES.values(), ids=HISTORIES)
def test_histories_are_read(tmp_path, content):
    (tmp_path / "histories.csv").write_text(content)
    users = batch_inputs.read_histories(tmp_path / "histories.csv", KNOWN)
    found = list(users.rows())
    assert users.most == len(found)
    expected = [line.replace('"', "").split(",") for line in content.splitlines()]
    assert found == [(user, history) for user, *history in expected]


def test_the_histories_of_interactions_are_in_order_of_time(tmp_path):
    path, content = tmp_path / "ratings.csv", ratings()
    path.write_text("userId,movieId,rating,timestamp\n" + content + "single,7,5,1\n")
    users, report = batch_inputs.read_interactions(Interactions(str(path)))
    expected = {}
    rows = [line.split(",") for line in content.splitlines()]
    for user, item, _, _ in sorted(rows, key=lambda row: int(row[3])):
        expected.setdefault(user, []).append(item)
    expected["single"] = ["7"]
    assert dict(users.rows()) == expected and users.most == len(expected)
    assert "user 'userId', item 'movieId', time 'timestamp'" in str(report)


@pytest.mark.parametrize("header", ["user,items", "user_id,history,", "customer"])
def test_a_header_is_no_user(tmp_path, capfd, header):
    path = tmp_path / "in.csv"
    path.write_text(f"{header}\nann,1,2\nbob,2\n")
    assert list(batch_inputs.read_histories(path, KNOWN).rows()) == [("ann", ["1", "2"]), ("bob", ["2"])]
    assert f"the first line is taken for a header: {header}" in capfd.readouterr().err


def test_a_user_whose_name_is_user_keeps_a_known_history(tmp_path):
    path = tmp_path / "in.csv"
    path.write_text("user,1,2\nbob,2\n")
    assert [user for user, _ in batch_inputs.read_histories(path, KNOWN).rows()] == ["user", "bob"]


@given(st.lists(st.text("abc", min_size=1, max_size=2), min_size=3, max_size=8))
def test_a_user_has_one_row(tmp_path_factory, users):
    path = tmp_path_factory.getbasetemp() / "in.csv"
    path.write_text("".join(f"{user},1,2{',1' * (place % 3)}\n" for place, user in enumerate(users)))
    if len(set(users)) == len(users):
        assert [user for user, _ in batch_inputs.read_histories(path, KNOWN).rows()] == users
        return
    number = next(place for place, user in enumerate(users, 1) if user in users[: place - 1])
    with pytest.raises(UserError, match=rf"in\.csv, row {number}: each user must have one row\. Received: user "):
        batch_inputs.read_histories(path, KNOWN)
