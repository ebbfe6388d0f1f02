"""Orders of examples, drawn and computed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert4rec_tf.data.examples import orders
from bert4rec_tf.data.examples.orders import Computed, Drawn

KINDS = st.sampled_from([Drawn, Computed])


@given(KINDS, st.integers(1, 3_000), st.integers(0, 2**32))
def test_every_number_has_one_place(kind, count, seed):
    order, everything = kind(count, seed), np.arange(count)
    numbers = order.at(everything)
    np.testing.assert_array_equal(np.sort(numbers), everything)
    np.testing.assert_array_equal(order.places_of(numbers), everything)


@given(st.integers(2**27, 2**50), st.integers(0, 2**32), st.data())
def test_huge_orders_are_computed_where_they_are_asked(count, seed, data):
    places = np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=50, unique=True)))
    order = Computed(count, seed)
    numbers = order.at(places)
    assert len(set(numbers.tolist())) == len(places) and (numbers >= 0).all() and (numbers < count).all()
    np.testing.assert_array_equal(order.places_of(numbers), places)
    np.testing.assert_array_equal(numbers, [order.at(place[None])[0] for place in places])


def by_hand(place, count, seed):
    """What `Computed` has at a place, in Python's integers."""
    half = max((count - 1).bit_length() + 1, 2) // 2
    keys = np.random.default_rng([seed, 0]).integers(1 << 63, size=orders.ROUNDS, dtype=np.uint64).tolist()
    while True:
        left, right = place >> half, place % 2**half
        for key in keys:
            mixed = right
            for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
                mixed = (mixed + key) * factor % 2**64
                mixed ^= mixed >> 31
            left, right = right, left ^ mixed % 2**half
        place = left << half | right
        if place < count:
            return place


def test_a_computed_order_is_a_feistel_network():
    order = Computed(1_000_003, 7)
    places = np.arange(0, 1_000_003, 9_973)
    assert order.at(places).tolist() == [by_hand(int(place), 1_000_003, 7) for place in places]


@pytest.mark.parametrize("kind", [Drawn, Computed])
def test_an_order_is_random(kind):
    """Pearson's statistic of 16 x 16 cells of place and number; neighbours; and another seed's order."""
    count = 1 << 16
    numbers = kind(count, 3).at(np.arange(count))
    cells = np.histogram2d(np.arange(count), numbers, bins=16)[0]
    expected = count / 256
    assert 160 < ((cells - expected) ** 2 / expected).sum() < 300  # 225 degrees of freedom; deviation 21
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.02
    assert (numbers == kind(count, 4).at(np.arange(count))).mean() < 0.001


def test_beyond_the_limit_orders_are_computed(monkeypatch):
    monkeypatch.setattr(orders, "MOST_IN_MEMORY", 100)
    assert isinstance(orders.order_of(100, 1), Drawn) and isinstance(orders.order_of(101, 1), Computed)
