"""Vocabulary, grouping by user and the leave-one-out split, against lists and dictionaries."""

import hashlib
import itertools
import struct
from collections import Counter
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.profiles import examples

from bert4rec_tf.data import sequences as module
from bert4rec_tf.data.reading.overlaps import join_actions
from bert4rec_tf.data.sequences import (
    PAD,
    LeaveOneOut,
    Sequences,
    Vocabulary,
    mask_token,
)

QUICK = settings(max_examples=examples(60))
PAIRS = st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from("uvwxyz")), min_size=1, max_size=40)
HISTORIES = st.lists(st.lists(st.integers(0, 8), min_size=2, max_size=9), min_size=1, max_size=6)


def coded(pairs):
    users = list(dict.fromkeys(user for user, _ in pairs))
    items = list(dict.fromkeys(item for _, item in pairs))
    return (
        np.array([users.index(user) for user, _ in pairs], np.int64),
        np.array([items.index(item) for _, item in pairs], np.int64),
        np.array(users, object),
        np.array(items, object),
    )


def group(pairs):
    return Sequences.from_codes(*coded(pairs))


def from_histories(histories):
    return group([(f"user{user}", f"item{item}") for user, history in enumerate(histories) for item in history])


def as_lists(sequences):
    return [sequences[user].tolist() for user in range(sequences.num_users)]


def raw_histories(pairs):
    histories = {}
    for user, item in pairs:
        histories.setdefault(user, []).append(item)
    return histories


@QUICK
@given(PAIRS)
def test_vocabulary_is_the_sorted_counter_of_the_actions(pairs):
    counted = Counter(item for _, item in pairs)
    in_file_order = list(dict.fromkeys(item for _, item in pairs))
    expected = sorted(in_file_order, key=lambda item: -counted[item])
    vocabulary = group(pairs).vocabulary
    assert vocabulary.items.tolist() == expected
    assert vocabulary.counts.tolist() == [counted[item] for item in expected]
    assert (vocabulary.num_items, mask_token(vocabulary.num_items)) == (len(expected), len(expected) + 1)


@QUICK
@given(PAIRS)
def test_interleaved_users_are_grouped(pairs):
    expected = raw_histories(pairs)
    sequences = group(pairs)
    decoded = [sequences.vocabulary.decode(sequences[user]) for user in range(sequences.num_users)]
    assert sequences.users.tolist() == list(expected)
    assert decoded == list(expected.values())


@pytest.fixture
def vocabulary():
    return Vocabulary(np.array(["red", "green", "blue"], object), np.array([5, 3, 1]))


def test_encode_numbers_from_one_and_gives_padding_for_the_unknown(vocabulary):
    ids = vocabulary.encode(["blue", "pink", "red", "red"])
    assert ids.tolist() == [3, PAD, 1, 1]
    assert ids.dtype == np.int32


@pytest.mark.parametrize("wrong", [PAD, -1, 4, 100])
def test_decode_refuses_unknown_numbers(vocabulary, wrong):
    with pytest.raises(ValueError, match=r"\[1, 3\].*Received: .*" + str(wrong)):
        vocabulary.decode(np.array([2, wrong]))


@QUICK
@given(HISTORIES, st.data())
def test_without_last_drops_from_the_end_of_each_user(histories, data):
    sequences = from_histories(histories)
    before = as_lists(sequences)
    drop = [data.draw(st.integers(0, len(history))) for history in histories]
    shorter = sequences.drop_last(np.array(drop))
    assert as_lists(shorter) == [history[: len(history) - less] for history, less in zip(before, drop)]
    assert shorter.vocabulary is sequences.vocabulary
    assert shorter.users.tolist() == sequences.users.tolist()
    assert as_lists(sequences) == before


@QUICK
@given(HISTORIES, st.integers(1, 12), st.data())
def test_last_gives_right_padded_rows_for_any_choice_of_users(histories, width, data):
    sequences = from_histories(histories)
    chosen = data.draw(st.lists(st.integers(0, len(histories) - 1), min_size=1))
    rows, lengths = sequences.take_last(np.array(chosen), width)
    ends = [as_lists(sequences)[user][-width:] for user in chosen]
    assert rows.tolist() == [end + [PAD] * (width - len(end)) for end in ends]
    assert lengths.tolist() == [len(end) for end in ends]
    assert rows.dtype == lengths.dtype == np.int32


@QUICK
@given(HISTORIES)
def test_leave_one_out_holds_out_the_last_two_of_users_with_three(histories):
    sequences = from_histories(histories)
    lists = as_lists(sequences)
    split = LeaveOneOut(sequences)
    evaluated = [user for user, history in enumerate(lists) if len(history) >= 3]
    assert split.users.tolist() == evaluated
    assert split.num_not_evaluated == len(lists) - len(evaluated)
    assert split.targets("test").tolist() == [lists[user][-1] for user in evaluated]
    assert split.targets("validation").tolist() == [lists[user][-2] for user in evaluated]
    long = [len(history) >= 3 for history in lists]
    assert as_lists(split.training(False)) == [items[:-2] if cut else items for items, cut in zip(lists, long)]
    assert as_lists(split.training(True)) == [items[:-1] if cut else items for items, cut in zip(lists, long)]


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def fingerprint_in_plain_python(histories, users, items, size, later=None):
    """What `Sequences.fingerprint` is, from lists, with `size` users in a block."""
    lines = []
    for begin in range(0, len(histories), size):
        block = histories[begin : begin + size]
        content = b"".join(struct.pack("<q", len(history)) for history in block)
        content += b"".join(struct.pack("<i", item) for history in block for item in history)
        if later is not None:
            content += b"".join(struct.pack("<q", number) for number in later[begin : begin + size])
            content += b"\0"
        lines.append(sha256(content))
    return sha256("\n".join([*lines, *(sha256("\n".join(ids).encode()) for ids in (users, items))]).encode())


def with_histories(sequences, histories):
    splits = np.cumsum([0, *map(len, histories)])
    return replace(sequences, items=np.array([item for one in histories for item in one], np.int32), splits=splits)


@pytest.mark.parametrize("kind", ["uint8", "int32", "int64", "uint64"])
def test_splits_are_the_running_sums_in_64_bits(kind):
    for lengths in ([], [0], [200, 0, 250, 3]):
        for given_lengths in (lengths, np.array(lengths, kind)):
            splits = module.make_splits(given_lengths)
            assert splits.tolist() == [*itertools.accumulate(lengths, initial=0)] and splits.dtype == np.int64


def blocks_of(size):
    return mock.patch.object(module, "USERS_OF_A_BLOCK", size)


@QUICK
@given(HISTORIES, st.integers(1, 3), st.data())
def test_fingerprint_is_the_hash_of_the_blocks_hashes(histories, size, data):
    sequences = from_histories(histories)
    lists = as_lists(sequences), sequences.users.tolist(), sequences.vocabulary.items.tolist()
    later = [data.draw(st.integers(0, len(history))) for history in histories]
    cut = replace(sequences, num_later=np.array(later))
    with blocks_of(size):
        assert sequences.fingerprint == fingerprint_in_plain_python(*lists, size)
        assert cut.fingerprint == fingerprint_in_plain_python(*lists, size, later)


def test_a_block_has_16384_users():
    """Fingerprints that were recorded depend on it."""
    histories, users = [[1, 2]] * (16_384 + 1), [f"user{user}" for user in range(16_384 + 1)]
    vocabulary = Vocabulary(np.array(["x", "y"], object), np.full(2, len(users)))
    sequences = with_histories(Sequences(np.array([]), np.array([]), np.array(users, object), vocabulary), histories)
    assert sequences.fingerprint == fingerprint_in_plain_python(histories, users, ["x", "y"], 16_384)


@QUICK
@given(PAIRS, PAIRS)
def test_joined_sequences_have_a_user_s_later_actions_behind_the_earlier_ones(first, second):
    raw = raw_histories([*first, *second])
    both, _ = join_actions(*(Sequences.from_codes(*coded(pairs)) for pairs in (first, second)))
    histories = {user: both.vocabulary.decode(both[place]) for place, user in enumerate(both.users.tolist())}
    assert histories == raw
    assert dict(zip(both.vocabulary.items.tolist(), both.vocabulary.counts.tolist())) == Counter(
        item for history in histories.values() for item in history
    )


@QUICK
@given(HISTORIES, st.data())
def test_a_cut_holds_out_what_comes_after_it(histories, data):
    later = [data.draw(st.integers(0, len(history))) for history in histories]
    sequences = replace(from_histories(histories), num_later=np.array(later))
    split = LeaveOneOut(sequences)
    before = [sequences[u][: len(h) - n] for u, (h, n) in enumerate(zip(histories, later))]
    evaluated = [u for u, known in enumerate(before) if later[u] and len(known) >= 2]
    assert split.users.tolist() == evaluated
    assert split.targets("test").tolist() == [sequences[u][len(before[u])] for u in evaluated]
    cut = [known[:-1] if u in evaluated else known for u, known in enumerate(before)]
    assert as_lists(split.histories("test")) == [known.tolist() for known in before]
    assert as_lists(split.histories("validation")) == [known.tolist() for known in cut]
    assert split.targets("validation").tolist() == [sequences[u][len(cut[u])] for u in evaluated]
    assert replace(sequences, num_later=None).fingerprint != sequences.fingerprint


def test_sequences_print_a_few_lines():
    shown = repr(from_histories([[*range(9)], [1, 2], [3, 4], [5, 6]]))
    assert shown.splitlines()[0] == "Sequences of 4 users, 9 items, 15 actions (3.8 per user)"
    assert shown.splitlines()[1].startswith("  user user0: item0, ") and shown.splitlines()[1].endswith(", ...")
    assert len(shown.splitlines()) == 5 and shown.endswith("  ...")
