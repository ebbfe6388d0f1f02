"""Candidates: unseen, distinct, drawn by their law, and kept on the disk."""

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support.ranking_oracle import FEW, any_histories, make_sequences

from bert4rec_tf.data.sequences import LeaveOneOut
from bert4rec_tf.evaluation.candidates import SAMPLERS, draw_popular, draw_uniform, load_or_draw
from bert4rec_tf.evaluation.metrics import POPULAR
from bert4rec_tf.foundation.warning import FileWarning

either_law = pytest.mark.parametrize("draw", SAMPLERS.values(), ids=SAMPLERS)


# What is drawn


@either_law
@FEW
@given(any_histories(), st.integers(1, 30), st.integers(0, 3), st.sampled_from([1, 60, 1 << 25]))
def test_candidates_are_unseen_and_distinct_and_as_many_as_there_are(
    draw, sequences, num_negatives, seed, block_elements
):
    users = np.arange(sequences.num_users)
    drawn = draw(sequences, users, num_negatives, seed, block_elements)
    assert drawn.shape == (len(users), num_negatives) and drawn.dtype == np.int32
    for user in users:
        unseen = set(range(1, sequences.num_items + 1)) - set(sequences[user].tolist())
        size = min(num_negatives, len(unseen))
        found = drawn[user, :size].tolist()
        assert len(set(found)) == size and set(found) <= unseen
        assert not drawn[user, size:].any()


def random_histories():
    rng = np.random.default_rng(2)
    return make_sequences([rng.integers(1, 101, size=20) for _ in range(30)] + [np.arange(1, 101)], 100)


@either_law
def test_the_same_seed_gives_the_same_candidates_and_another_seed_others(draw):
    first, again, other = (draw(random_histories(), np.arange(30), 10, seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any(axis=1).all()


# Their law

NUM_USERS, DRAWS = 6_000, 3


@dataclass(frozen=True)
class Crowd:
    """Many users with one and the same history, and one whose actions give every item its weight."""

    weights: np.ndarray
    history: tuple[int, ...] = (2, 3, 11)
    repeats: int = 1

    @property
    def free(self):
        return [item for item in range(1, len(self.weights) + 1) if item not in self.history]

    def sequences(self):
        rest = np.repeat(np.arange(1, len(self.weights) + 1), self.weights)
        return make_sequences([np.tile(self.history, self.repeats)] * NUM_USERS + [rest], len(self.weights))


def power_law(total, size=20):
    return np.rint(total / np.arange(1, size + 1) ** 1.1).astype(int)


CASES = {
    "popular by rejection": (draw_popular, Crowd(power_law(60_000))),
    "popular by rejection and race": (draw_popular, Crowd(power_law(300))),
    "popular by race": (draw_popular, Crowd(np.arange(20, 0, -1), repeats=50)),
    "uniform by rejection": (draw_uniform, Crowd(power_law(60_000), (2, 3, 5, 8, 9, 11, 12, 15, 18))),
    "uniform by rejection and race": (draw_uniform, Crowd(power_law(20_000, 700)[::-1], tuple(range(1, 690)))),
}


def ordered_law(weights, size):
    """The probability of every ordered draw, one at a time, each in proportion to its weight among what is left."""
    if size == 0:
        return {(): 1.0}
    total = sum(weights.values())
    law = {}
    for item, weight in weights.items():
        others = {other: value for other, value in weights.items() if other != item}
        for tail, probability in ordered_law(others, size - 1).items():
            law[(item, *tail)] = probability * weight / total
    return law


def p_value(drawn, law, columns):
    """Chi-square of what was drawn at `columns`, cells that expect fewer than five put together."""
    expected, observed = Counter(), Counter(map(tuple, drawn[:, columns].tolist()))
    for draws, probability in law.items():
        expected[tuple(draws[column] for column in columns)] += probability * len(drawn)
    assert set(observed) <= set(expected)
    large = [cell for cell, value in expected.items() if value >= 5]
    assert len(large) > 10
    pairs = [(observed[cell], expected[cell]) for cell in large]
    if len(large) < len(expected):
        pairs.append(tuple(len(drawn) - sum(column) for column in zip(*pairs, strict=True)))
    return stats.chisquare(*zip(*pairs, strict=True), sum_check=False).pvalue


@pytest.mark.parametrize("name", CASES)
def test_candidates_obey_the_law_of_draws_one_by_one(name):
    """Three draws for each user, in six blocks."""
    draw, crowd = CASES[name]
    drawn = draw(crowd.sequences(), np.arange(NUM_USERS), DRAWS, 7, block_elements=1_000 * (len(crowd.weights) + 1))
    law = ordered_law({item: 1 if draw is draw_uniform else int(crowd.weights[item - 1]) for item in crowd.free}, 3)
    assert sum(law.values()) == pytest.approx(1)
    for columns in ([0], [1], [2], [0, 1], [1, 2], [0, 1, 2]):
        assert p_value(drawn, law, columns) > 1e-4, columns


# Kept on the disk

SEQUENCES = random_histories()
USERS = LeaveOneOut(SEQUENCES).users


def the_file(folder):
    (path,) = folder.glob("*.npz")
    return path


@pytest.fixture
def kept(tmp_path):
    return load_or_draw(tmp_path, SEQUENCES, USERS, 10, 5)


def test_candidates_are_never_more_than_the_items(tmp_path):
    found = load_or_draw(tmp_path, SEQUENCES, USERS, 10**9, 5)
    np.testing.assert_equal(
        found, {law: draw(SEQUENCES, USERS, SEQUENCES.num_items, 5) for law, draw in SAMPLERS.items()}
    )


@pytest.mark.filterwarnings("error::bert4rec_tf.Bert4RecWarning")
def test_candidates_are_drawn_once(tmp_path, kept, monkeypatch):
    before = the_file(tmp_path).read_bytes()
    for law in SAMPLERS:
        monkeypatch.setitem(SAMPLERS, law, None)
    np.testing.assert_equal(load_or_draw(tmp_path, SEQUENCES, USERS, 10, 5), kept)
    assert the_file(tmp_path).read_bytes() == before


def test_other_seeds_sizes_and_data_are_other_files(tmp_path, kept):
    others = make_sequences([*SEQUENCES.items.reshape(-1, 20)[:30, ::-1], np.arange(1, 101)], 100)
    asked = [(SEQUENCES, 10, 5), (SEQUENCES, 10, 6), (SEQUENCES, 9, 5), (SEQUENCES, 1, 0), (others, 10, 5)]
    first = [load_or_draw(tmp_path, sequences, USERS, size, seed) for sequences, size, seed in asked]
    again = [load_or_draw(tmp_path, sequences, USERS, size, seed) for sequences, size, seed in asked]
    assert len(list(tmp_path.glob("*.npz"))) == len(asked)
    for one, other in zip(first, again, strict=True):
        np.testing.assert_equal(other, one)
    for number, (sequences, size, seed) in enumerate(asked):
        np.testing.assert_array_equal(first[number][POPULAR], draw_popular(sequences, USERS, size, seed))


DAMAGES = {
    "empty": lambda content: b"",
    "cut short": lambda content: content[: len(content) // 2],
    "a bit flipped in the last array": lambda content: flipped(content, 8 * (len(content) - 200)),
}


def flipped(content, bit):
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.filterwarnings("error::bert4rec_tf.Bert4RecWarning")
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_candidates_are_drawn_again(tmp_path, kept, damage):
    path = the_file(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    with pytest.warns(FileWarning, match=rf"{re.escape(str(path))}: cannot be read.*; drawn again$"):
        np.testing.assert_equal(load_or_draw(tmp_path, SEQUENCES, USERS, 10, 5), kept)
    assert path.read_bytes() == whole
    np.testing.assert_equal(load_or_draw(tmp_path, SEQUENCES, USERS, 10, 5), kept)


def test_candidates_of_other_users_are_drawn_again(tmp_path, kept):
    with pytest.warns(FileWarning, match="drawn for other users"):
        fewer = load_or_draw(tmp_path, SEQUENCES, USERS[:2], 10, 5)
    assert {found.shape for found in fewer.values()} == {(2, 10)}
