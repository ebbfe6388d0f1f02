"""Rows of several requests in one call of the model: nobody gets another one's answer, or has to wait for nothing."""

import asyncio

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.http_server import Fake
from support.profiles import examples

from bert4rec_tf.serving.http.batching import Batcher, Call, compute
from bert4rec_tf.serving.signatures import ModelError

texts = st.lists(st.text(min_size=1, max_size=3), max_size=4)


def joined_texts(arrays):
    """Each row's ids in one text, k times; refuses a batch with the id BAD."""
    if (arrays["histories"] == b"BAD").any():
        raise ModelError("bad", is_client_error=True)
    rows = np.array([b"|".join(one for one in row if one) for row in arrays["histories"]], object)
    return {"texts": rows, "wide": np.tile(rows[:, None], [1, int(arrays.get("k", 2))])}


def array(rows):
    width = max(map(len, rows), default=0)
    made = np.full((len(rows), width), b"", object)
    for place, row in enumerate(rows):
        made[place, : len(row)] = [text.encode() for text in row]
    return made


def call_of(rows, k=2, model=None):
    arrays = {"histories": array(rows), "k": np.array(k)}
    return Call(model or MODEL, "serving_default", arrays, len(rows), frozenset({"k"}))


MODEL = Fake(joined_texts)


def check(outputs, rows, k=2):
    expected = ["|".join(row).encode() for row in rows]
    assert outputs["texts"].tolist() == expected
    assert outputs["wide"].tolist() == [[text] * k for text in expected]


class Counting(Batcher):
    """Counts its batches."""

    batches = 0

    def _next_batch(self):
        batch = super()._next_batch()
        self.batches += bool(batch)
        return batch


def together(calls, max_batch_size=8, max_queue=10_000):
    """Submits all at once; returns outcomes and how many batches there were."""

    async def run():
        async with Counting(max_batch_size, max_queue) as batcher:
            outcomes = await asyncio.gather(*(batcher.submit(call) for call in calls), return_exceptions=True)
            return outcomes, batcher.batches

    return asyncio.run(run())


@settings(max_examples=examples(30))
@given(st.lists(st.tuples(st.lists(texts, min_size=1, max_size=10), st.integers(1, 3)), min_size=1, max_size=6))
def test_each_request_gets_its_own_answer(requests):
    outcomes, _ = together([call_of(rows, k) for rows, k in requests])
    for outputs, (rows, k) in zip(outcomes, requests, strict=True):
        check(outputs, rows, k)


def test_requests_that_wait_together_share_a_call_and_others_do_not():
    rows = [["a", "b"]]
    outcomes, batches = together([call_of(rows)] * 8)
    assert batches == 1 and len(outcomes) == 8
    assert together([call_of(rows, k) for k in (1, 2, 1, 2)])[1] == 2
    assert together([call_of(rows, model=model) for model in (MODEL, Fake(joined_texts))])[1] == 2


def test_a_call_of_many_rows_is_computed_in_pieces():
    rows = [[f"row{number}"] for number in range(21)]
    (outputs,), batches = together([call_of(rows)], max_queue=3)
    check(outputs, rows)
    assert batches == 3


def test_short_lists_that_all_rows_share_join_by_their_values_and_long_ones_if_they_are_the_same():
    def make_call(candidates):
        inputs = {"histories": array([["a"], ["b"]]), "candidates": array([candidates])}
        return Call(MODEL, "recommend", inputs, 2, shared=frozenset({"candidates"}))

    assert make_call(["x", "y"]).group == make_call(["x", "y"]).group != make_call(["x", "z"]).group
    long = make_call([f"item{number}" for number in range(2_000)])
    assert long.group != make_call([f"item{number}" for number in range(2_000)]).group
    assert long.group == Call(MODEL, "recommend", long.arrays, 2, shared=long.shared).group


def test_inputs_other_than_histories_join_only_when_equally_wide():
    narrow, wide = (
        Call(MODEL, "score", {"histories": array([["a"]]), "candidates": array([names])}, 1)
        for names in (["x"], ["x", "y"])
    )
    assert narrow.group != wide.group
    assert (
        narrow.group == Call(MODEL, "score", {"histories": array([["a", "b"]]), "candidates": array([["z"]])}, 1).group
    )


def test_a_request_that_the_model_refuses_does_not_spoil_those_beside_it():
    requests = [[["a"]], [["BAD"]], [["b", "c"]]]
    outcomes, _ = together([call_of(rows) for rows in requests])
    check(outcomes[0], requests[0])
    check(outcomes[2], requests[2])
    assert isinstance(outcomes[1], ModelError)


def test_a_defect_reaches_everybody_in_the_batch_and_the_next_one_is_computed():
    model = Fake(lambda arrays: {"a": arrays["none"]})
    outcomes = compute([call_of([["a"]], model=model)] * 2)
    assert [type(outcome) for outcome in outcomes] == [KeyError, KeyError]
    outcomes, _ = together([call_of([["a"]], model=model), call_of([["a"]])])
    assert isinstance(outcomes[0], KeyError)
    check(outcomes[1], [["a"]])
