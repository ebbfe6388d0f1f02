"""The authors' formulation computes what ours does, and every line of the benchmark can be measured."""

import json
import random
import sys

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from support.profiles import examples, slow_but
from support.ranking_oracle import make_sequences

from benchmarks import __main__ as program
from benchmarks import growth, lines, measuring, original, serving, shapes
from bert4rec_tf.config.run_record import MaskingSettings
from bert4rec_tf.data.examples.cloze import cut_windows
from bert4rec_tf.data.sequences import LeaveOneOut, Vocabulary, mask_token
from bert4rec_tf.evaluation.metrics import POPULAR
from bert4rec_tf.evaluation.ranker import Ranker, RankingTask
from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.export.saved_model import export
from bert4rec_tf.models import BERT4Rec
from bert4rec_tf.serving.signatures import LoadedModel

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


def test_generated_data_have_the_users_items_and_lengths_asked_for():
    sequences = shapes.generate(3_000, 500, 5, 9.0)
    assert sequences.num_users == 3_000 and sequences.num_items == 500
    assert sequences.lengths.min() == 5 and sequences.lengths.mean() == pytest.approx(9.0, rel=0.05)
    counts = sequences.vocabulary.counts
    assert counts[:50].sum() > 3 * counts[-50:].sum()


@settings(max_examples=examples(100))
@given(st.integers(2, 40), st.integers(2, 12), st.sampled_from([0.1, 0.5, 1.0, -1]))
def test_the_originals_windows_are_ours(length, max_length, window_step):
    if window_step != -1 and int(window_step * max_length) < 1:
        return
    history = np.arange(1, length + 1)
    ours = cut_windows(make_sequences([history], length), max_length, window_step)
    rows = [row[row > 0].tolist() for row in ours.rows(np.arange(len(ours)), max_length)]
    assert sorted(original.windows_of(history.tolist(), max_length, window_step)) == sorted(rows)


def test_the_originals_examples_come_back_from_their_file(tmp_path):
    sequences = shapes.generate(30, 40, 5, 8.0)
    number = original.prepare(sequences, np.arange(30), MASKING, 10, tmp_path / "file", 1)
    assert number == 3 * len(cut_windows(sequences, 10, 0.5))
    batch = next(iter(original.read(tmp_path / "file", 64, 10, 4)))
    items, positions, labels = (batch[name].numpy() for name in ("input_ids", "masked_lm_positions", "masked_lm_ids"))
    masked = batch["masked_lm_weights"].numpy() > 0
    assert (items[np.nonzero(masked)[0], positions[masked]] == mask_token(sequences.num_items)).all()
    assert ((labels > 0) == masked).all() and ((items > 0) == batch["input_mask"].numpy()).all()
    assert ((items == mask_token(sequences.num_items)).sum(axis=1) == masked.sum(axis=1)).all()


def test_the_original_masks_no_token_that_is_in_no_list():
    tokens, places, labels = original.mask(["a", "b", "c", "d"], MASKING, ["a", "c"], random.Random(1))
    assert set(places) <= {0, 2} and len(places) == 2
    assert labels == ["a", "c"] and tokens == ["[MASK]", "b", "[MASK]", "d"]


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
    theirs = original.evaluate(model, task.histories, split.users, task.targets, sequences, 16)
    np.testing.assert_array_equal(Ranker(model.score, model.max_history).rank(task)[POPULAR], theirs)


def test_the_originals_candidates_are_unseen_and_distinct():
    sequences = shapes.generate(40, 300, 5, 8.0)
    for user, drawn in enumerate(original.draw_candidates(sequences, np.arange(40), np.random.RandomState(1))):
        assert len(set(drawn)) == 100 and not set(drawn) & set(sequences[user].tolist())


ALONE = ("models", "training_as_in_the_paper", "evaluation_large")
"""Lines without a formulation of the authors."""


@pytest.mark.parametrize("name", slow_but(["candidates"], lines.LINES))
def test_every_line_can_be_measured(tiny, name):
    rows = list(lines.LINES[name]())
    assert rows and all(row.ours > 0 and (name in ALONE or row.theirs > 0) for row in rows)
    assert all(np.isfinite(value) for row in rows for value in row.notes.values())


@pytest.mark.slow
def test_the_growth_of_each_figure_can_be_measured_and_drawn(tiny, monkeypatch, tmp_path):
    monkeypatch.setattr(growth, "CATALOGUES", (50,))
    monkeypatch.setattr(growth, "LENGTHS", (8,))
    monkeypatch.setattr(growth, "USERS", (50,))
    monkeypatch.setattr(growth, "ITEMS", 200)
    curves = growth.measure()
    assert set(curves) == {"catalogue", "length", "users"}
    assert all(len(values) == 1 and values[0] > 0 for found in curves.values() for values in found.values())
    growth.plot(curves, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["catalogue.png", "length.png", "users.png"]


@pytest.mark.slow
def test_the_program_prints_a_table_and_writes_the_results(tiny, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--only=candidates", f"--output={tmp_path / 'found'}"])
    program.main()
    printed = capsys.readouterr().out
    assert "GFLOP/s" in printed and "candidates, tiny" in printed and "training" not in printed
    content = json.loads((tmp_path / "found" / "lines.json").read_text())
    assert [row["line"] for row in content["lines"]] == ["candidates, tiny"]
    assert content["machine"]["copy"] > 0


def test_formulations_take_turns_and_the_first_calls_do_not_count():
    called = []
    found = measuring.alternate({name: lambda name=name: called.append(name) for name in "ab"}, rounds=3, warm_up=1)
    assert called == ["b", "a", "a", "b", "b", "a", "a", "b"]
    assert set(found) == {"a", "b"} and len(found["a"].wall) == 3


@pytest.mark.slow
def test_the_memory_of_a_call_is_that_of_a_process_of_its_own():
    small, large = (measuring.peak_memory(measuring.copy_rate, size)[1] for size in (1, 150))
    assert 250e6 < large - small < 400e6


@pytest.mark.slow
def test_a_process_that_dies_is_told_of():
    with pytest.raises(RuntimeError, match="exit ended with exit code 3"):
        measuring.peak_memory(sys.exit, 3)


@pytest.mark.slow
def test_the_serving_of_a_model_can_be_measured_and_loses_nothing(monkeypatch, capsys):
    monkeypatch.setattr(serving, "CATALOGUES", (300,))
    monkeypatch.setattr(serving, "REQUESTS", {"in process": 5, "over HTTP": 5, "saturated": 200})
    (figures,) = serving.measure()
    for run in ("over HTTP, one client", "saturated", "small queue"):
        assert figures[f"{run}, errors"] == figures[f"{run}, lost"] == figures[f"{run}, wrong"] == 0
    assert figures["saturated, answered"] == 200 and figures["over HTTP, one client, answered"] == 5
    assert figures["small queue, answered"] + figures["small queue, refused"] == 200
    assert "users/s" in capsys.readouterr().out


@pytest.mark.slow
def test_the_plain_recommendation_is_that_of_the_saved_model(tmp_path):
    model = BERT4Rec(300, max_length=serving.LENGTH, hidden_dim=8, initializer_stddev=0.3)
    vocabulary = Vocabulary(np.array([f"item{number}" for number in range(300)], object), np.arange(300, 0, -1))
    export(model, vocabulary, tmp_path / "model", ExportOptions(serving.K))
    served, plain = LoadedModel(tmp_path / "model"), serving.Plain(model, vocabulary)
    for history in serving.make_histories(300, 5):
        found = serving.ask(served, [history])
        items, scores = plain.recommend(history)
        assert [item.decode() for item in found["items"][0]] == items
        np.testing.assert_allclose(found["scores"][0], scores, atol=1e-4)
