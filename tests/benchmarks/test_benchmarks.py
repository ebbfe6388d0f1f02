"""The authors' formulation computes what ours does, and every line of the benchmark can be measured."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from support.profiles import examples, slow_but
from support.ranking_oracle import make_sequences

from benchmarks import lines, measuring, original, serving, shapes
from bert4rec_tf.config.run_record import MaskingSettings
from bert4rec_tf.data.examples.cloze import cut_windows
from bert4rec_tf.data.sequences import LeaveOneOut, mask_token
from bert4rec_tf.evaluation.metrics import POPULAR
from bert4rec_tf.evaluation.ranking import Ranker
from bert4rec_tf.evaluation.ranking_task import RankingTask
from bert4rec_tf.models import BERT4Rec

MASKING = MaskingSettings(mask_proportion=0.4, max_predictions=4, window_step=0.5, mask_copies=2)
TINY = shapes.Shape(60, 300, 5, 8.0, 10, MASKING)


@pytest.fixture
def tiny(monkeypatch):
    """Every shape is small, and memory is not measured: that takes a process which knows nothing of this."""
    monkeypatch.setattr(shapes, "SHAPES", {"tiny": TINY})
    monkeypatch.setattr(shapes, "MILLION", TINY)
    monkeypatch.setattr(lines, "RANKED_USERS", 20)
    monkeypatch.setattr(lines, "SAMPLE_USERS", 20)
    monkeypatch.setattr(lines, "BATCH_SIZE", 16)
    monkeypatch.setattr(measuring, "peak_memory", lambda function, *arguments: (function(*arguments), 10**9))


@settings(max_examples=examples(100))
@given(st.integers(2, 40), st.integers(2, 12), st.sampled_from([0.1, 0.5, 1.0, -1]))
def test_the_originals_windows_are_ours(length, max_length, window_step):
    if window_step != -1 and int(window_step * max_length) < 1:
        return
    history = np.arange(1, length + 1)
    ours = cut_windows(make_sequences([history], length), max_length, window_step)
    rows = [row[row > 0].tolist() for row in ours.rows(np.arange(len(ours)), max_length)]
    assert sorted(original.cut_windows(history.tolist(), max_length, window_step)) == sorted(rows)


def test_the_originals_examples_are_read_back_from_their_file(tmp_path):
    sequences = shapes.generate(30, 40, 5, 8.0)
    number = original.prepare(sequences, np.arange(30), MASKING, 10, tmp_path / "file", 1)
    assert number == 3 * len(cut_windows(sequences, 10, 0.5))
    batch = next(iter(original.read(tmp_path / "file", 64, 10, 4)))
    items, positions, labels = (batch[name].numpy() for name in ("input_ids", "masked_lm_positions", "masked_lm_ids"))
    masked = batch["masked_lm_weights"].numpy() > 0
    assert (items[np.nonzero(masked)[0], positions[masked]] == mask_token(sequences.num_items)).all()
    assert ((labels > 0) == masked).all() and ((items > 0) == batch["input_mask"].numpy()).all()
    assert ((items == mask_token(sequences.num_items)).sum(axis=1) == masked.sum(axis=1)).all()


def test_both_formulations_of_the_step_compute_the_same_loss_and_gradients():
    sequences = shapes.generate(TINY.users, TINY.items, TINY.shortest, TINY.mean)
    batch, _, _ = lines.make_batch(TINY, sequences)
    model = BERT4Rec(TINY.items, max_length=10, hidden_dim=8, dropout=0.0, attention_dropout=0.0)
    variables = [variable.value for variable in model.trainable_variables]

    def value_and_gradients(loss):
        with tf.GradientTape() as tape:
            value = loss()
        return value, [tf.convert_to_tensor(gradient) for gradient in tape.gradient(value, variables)]

    ours, gradients = value_and_gradients(lambda: model.training_loss(batch))
    theirs, expected = value_and_gradients(lambda: original.training_loss(model, batch))
    assert float(ours) == pytest.approx(float(theirs), rel=1e-5)
    for found, wanted in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-7)


def test_both_formulations_of_the_evaluation_give_the_same_ranks(monkeypatch):
    sequences = shapes.generate(40, 300, 5, 8.0)
    split = LeaveOneOut(sequences)
    model = BERT4Rec(300, max_length=10, hidden_dim=8)
    drawn = np.array(original.draw_candidates(sequences, split.users, np.random.RandomState(2)), np.int32)
    task = RankingTask.from_split(split, "test", {POPULAR: drawn})
    monkeypatch.setattr(
        original, "draw_candidates", lambda full, users, rng: drawn[np.searchsorted(split.users, users)]
    )
    theirs = original.evaluate(
        original.make_likelihoods(model), model.max_history, task.histories, split.users, task.targets, sequences, 16
    )
    np.testing.assert_array_equal(Ranker(model.score, model.max_history).rank(task)[POPULAR], theirs)


ALONE = ("models", "training_as_in_the_paper", "evaluation_large")
"""Lines without a formulation of the authors."""


@pytest.mark.parametrize("name", slow_but(["candidates"], lines.LINES))
def test_every_line_can_be_measured(tiny, name):
    rows = list(lines.LINES[name]())
    assert rows and all(row.ours > 0 and (name in ALONE or row.theirs > 0) for row in rows)
    assert all(np.isfinite(value) for row in rows for value in row.notes.values())


@pytest.mark.slow
def test_the_serving_of_a_model_can_be_measured_and_loses_nothing(capsys):
    (figures,) = serving.measure([300], {"in process": 5, "over HTTP": 5, "saturated": 200})
    for run in ("over HTTP, one client", "saturated", "small queue"):
        assert figures[f"{run}, errors"] == figures[f"{run}, lost"] == figures[f"{run}, wrong"] == 0
    assert figures["saturated, answered"] == 200 and figures["over HTTP, one client, answered"] == 5
    assert figures["small queue, answered"] + figures["small queue, refused"] == 200
    assert "users/s" in capsys.readouterr().out
