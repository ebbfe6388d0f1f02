"""Known actions and new ones that repeat some of them, against plain Python."""

import warnings

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.interaction_files import histories
from support.profiles import examples
from support.ranking_oracle import make_sequences

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.id_types import drop_wrong_types
from bert4rec_tf.data.reading.overlaps import join_actions
from bert4rec_tf.data.reading.tables import read_frame
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.warning import DataWarning

COLUMNS = ["user", "item", "time"]
ROWS = st.tuples(st.integers(1, 4), st.integers(1, 12), st.integers(0, 30))


def read(rows, **options):
    frame = pd.DataFrame(rows, columns=COLUMNS)
    return read_frame(frame, Interactions("the table", **options), to_train=False)


def join_plainly(old, new):
    """Returns the histories of all rows, each once."""
    rows = list(dict.fromkeys([*sorted(old, key=lambda row: row[2]), *sorted(new, key=lambda row: row[2])]))
    rows.sort(key=lambda row: row[2])
    return {str(user): [str(item) for other, item, _ in rows if other == user] for user, _, _ in rows}


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(ROWS, min_size=3, max_size=40), st.data())
def test_new_actions_are_matched_and_ordered_by_time(rows, data):
    """A sliding window, late rows and earlier ones are all parts of a table, shuffled and overlapping."""
    part = st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))
    is_old, is_new = data.draw(part), data.draw(part)
    old = [row for row, known in zip(rows, is_old) if known]
    new = data.draw(st.permutations([row for row, known, fresh in zip(rows, is_old, is_new) if fresh or not known]))
    if not old or not new:
        return
    known, more = read(old), read(new)
    both, num_repeats = join_actions(known, more)
    assert histories(both) == join_plainly(old, new)
    assert num_repeats == len(set(new) & set(old))
    assert all(
        list(times) == sorted(times)
        for times in pd.Series(both.times.values)
        .groupby([user for user, length in enumerate(both.lengths) for _ in range(length)])
        .agg(list)
    )
    if len({(user, time) for user, _, time in rows}) == len(rows) and both.num_users and both.num_items > 1:
        whole = read(rows)
        assert both.fingerprint == whole.fingerprint and both.times.values.tolist() == whole.times.values.tolist()


@given(st.lists(ROWS, min_size=1, max_size=30), st.lists(ROWS, min_size=1, max_size=30))
def test_repeats_that_the_data_keep_stay_and_new_ones_of_known_rows_go(old, new):
    both, num_repeats = join_actions(read(old, duplicates="keep"), read(new, duplicates="keep"))
    left = [row for row in new if row not in old]
    rows = sorted([*old, *left], key=lambda row: row[2])
    assert num_repeats == len(new) - len(left)
    for user, history in histories(both).items():
        assert history == [str(item) for other, item, _ in rows if str(other) == user]


def test_what_comes_after_the_first_held_out_new_action_is_held_out():
    known = read([(1, 1, 1), (1, 2, 2), (1, 3, 9), (2, 1, 1), (2, 2, 9)])
    new = read([(1, 4, 0), (1, 2, 2), (1, 5, 8), (2, 2, 9), (2, 3, 3), (3, 1, 1), (4, 1, 8), (4, 2, 9)], test_from="5")
    both, _ = join_actions(known, new)
    expected = {"1": ["4", "1", "2", "5", "3"], "2": ["1", "3", "2"], "3": ["1"], "4": ["1", "2"]}
    assert histories(both) == expected and both.num_later.tolist() == [2, 0, 0, 2]


@pytest.mark.filterwarnings("error::bert4rec_tf.Bert4RecWarning")
def test_times_of_another_unit_and_missing_ones_are_refused():
    first = 1_600_000_000
    known = read([(1, item, first + item) for item in range(4)])
    meanings = {1_000 * first: "milliseconds since 1970", "2020-01-01": "dates", 7: "numbers of no known unit"}
    for time, meaning in meanings.items():
        expected = f"the times must be seconds since 1970, like those of .* Received: {meaning}; convert the new ones"
        with pytest.raises(UserError, match=expected):
            join_actions(known, read([(1, 9, time)]))
    with pytest.raises(UserError, match="the new actions must have times, seconds since 1970, like the known ones"):
        join_actions(known, read([(1, 9, 0)], time_column="none"))
    without_times = read([(1, item, 0) for item in range(4)], time_column="none")
    with pytest.warns(DataWarning, match="the known actions have no times, so all new ones count as later"):
        both, _ = join_actions(without_times, read([(1, 9, 0)]))
    assert histories(both) == {"1": ["0", "1", "2", "3", "9"]} and both.times is None


@pytest.mark.filterwarnings("error::bert4rec_tf.Bert4RecWarning")
def test_whole_numbers_with_a_gap_are_the_known_ids():
    known = read([(50, 1, 1), (50, 2, 2), (7, 1, 1)])
    more = pd.DataFrame([("50.0", 3, 3), ("50", 4, 4), ("9.0", 5, 3)], columns=COLUMNS)
    both, _ = join_actions(known, read(more))
    assert histories(both) == {"7": ["1"], "9": ["5"], "50": ["1", "2", "3", "4"]}
    assert drop_wrong_types(both)["user"]["type"] == "int64"
    for odd in ("50.5", "new"):
        with pytest.warns(DataWarning, match=f"the users' ids were all of int64, and some new ones, such as '{odd}'"):
            join_actions(known, read([("50.0", 3, 3), (odd, 3, 3)]))
    texts = read([("50.0", 1, 1), ("x", 2, 2)])
    assert histories(join_actions(texts, read([("50.0", 3, 3)]))[0]) == {"50.0": ["1", "3"], "x": ["2"]}


@pytest.mark.filterwarnings("error::bert4rec_tf.Bert4RecWarning")
@pytest.mark.parametrize(("new_id", "kind"), [(200, "uint8"), (300, "int64"), (-1, "int64"), (2**64 - 1, "uint64")])
def test_new_whole_numbers_widen_a_small_type(new_id, kind):
    known = pd.DataFrame([(1, 1, 1), (1, 2, 2)], columns=COLUMNS).astype({"item": "uint8"})
    both, _ = join_actions(read(known), read([(1, new_id, 3)]))
    assert drop_wrong_types(both)["item"]["type"] == kind
    for odd_ids in (["300", "x"], [str(2**64 - 1), "-1"]):
        with pytest.warns(DataWarning, match=f"items' ids were all of uint8, .* such as '{max(odd_ids)}', are not"):
            join_actions(read(known), read([(1, odd_id, 3) for odd_id in odd_ids]))


def test_new_actions_without_any_known_id_are_warned_of():
    known = read([("u1", "a", 1), ("u2", "b", 2)])
    with pytest.warns(DataWarning, match="none of the 2 users and 2 items .* Before: 'u1', 'a'; now: 'U1', 'A'"):
        join_actions(known, read([("U1", "A", 3), ("U2", "B", 4)]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in ([("U1", "A", 3), ("U2", "b", 4)], [("u1", "c", 3), ("u1", "d", 4)], [("u3", "c", 3)]):
            join_actions(known, read(rows))


@pytest.mark.filterwarnings("error::bert4rec_tf.Bert4RecWarning")
def test_without_times_all_new_actions_count_and_repeated_histories_are_warned_of():
    known = make_sequences([[1, 2, 3], [1, 2]], 9)
    both, num_repeats = join_actions(known, make_sequences([[4, 3], [2]], 9))
    assert num_repeats == 0
    assert next(iter(histories(both).values())) == [f"item{item}" for item in (1, 2, 3, 4, 3)]
    with pytest.warns(DataWarning, match="the new actions of 1 users begin with all known ones"):
        both, _ = join_actions(known, make_sequences([[1, 2, 3, 5], [2, 1]], 9))
    assert both.lengths.tolist() == [7, 4]
