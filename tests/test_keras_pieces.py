"""The pieces for loops of one's own: the metrics of Keras, and the datasets."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from support.models import NUM_ITEMS, SEQUENCES, make

import bert4rec_tf as b4r
from bert4rec_tf.config.run_record import MaskingSettings
from bert4rec_tf.evaluation.metrics import METRICS, compute_metrics
from bert4rec_tf.foundation.errors import UserError

OURS = {
    **{f"hr@{k}": lambda k=k: b4r.metrics.HitRate(k) for k in (1, 5, 10)},
    **{f"ndcg@{k}": lambda k=k: b4r.metrics.NDCG(k) for k in (5, 10)},
    "mrr": b4r.metrics.MRR,
}


def plain_ranks(targets, scores):
    pairs = [(row[target], row[1:]) for target, row in zip(targets.tolist(), scores.tolist()) if target]
    return np.array([sum(score >= of_target for score in others) - 1 for of_target, others in pairs])


@given(st.integers(0, 2**32 - 1))
def test_the_metrics_of_keras_are_those_of_the_evaluation(seed):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 9, (7, 15)).astype(np.float32)  # with ties
    targets = np.append(rng.integers(0, 15, 6), 14).astype(np.int32)
    expected = compute_metrics(plain_ranks(targets, scores))
    assert set(OURS) == set(METRICS)
    for name, make_metric in OURS.items():
        metric = make_metric()
        for part in (slice(0, 3), slice(3, 7)):
            metric.update_state(targets[part], scores[part])
        assert metric.name == name and float(metric.result()) == pytest.approx(expected[name], rel=1e-5)


@pytest.mark.parametrize("name", OURS)
def test_padding_never_counts_even_with_the_highest_score(name):
    scores = np.array([[0, 9, 8, 7], [9, 1, 2, 3]], np.float32)
    metric = OURS[name]()
    metric.update_state(np.array([1, 0]), scores)
    assert float(metric.result()) == 1.0


def test_metrics_use_weights_and_skip_padded_places():
    scores = np.zeros((1, 3, 6), np.float32)
    scores[0, 0, 4] = scores[0, 1, 2] = 1.0
    metric = b4r.metrics.HitRate(1)
    metric.update_state(np.array([[4, 3, 0]]), scores)
    assert float(metric.result()) == 0.5
    metric.reset_state()
    metric.update_state(np.array([[4, 3, 0]]), scores, sample_weight=np.array([[3.0, 1.0, 9.0]]))
    assert float(metric.result()) == 0.75
    with pytest.raises(ValueError, match="`k` must be at least 1"):
        b4r.metrics.NDCG(0)


def test_targets_and_weights_may_have_one_column_more_as_in_keras():
    scores = np.eye(4, dtype=np.float32)[[1, 2, 3]]
    targets, weights = np.array([1, 2, 1]), np.array([1.0, 1.0, 2.0])
    for shown in (targets, targets[:, None]):
        for weight in (weights, weights[:, None]):
            metric = b4r.metrics.HitRate(1)
            metric.update_state(shown, scores, weight)
            assert float(metric.result()) == 0.5
    metric.reset_state()
    metric.update_state(np.array([[1, 2], [1, 1]]), np.stack([scores[:2]] * 2), sample_weight=np.array([3.0, 1.0]))
    assert float(metric.result()) == 7 / 8


@pytest.mark.parametrize("name", OURS)
def test_metrics_survive_their_configuration(name):
    metric = OURS[name]()
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(metric))
    assert type(again) is type(metric) and again.get_config() == metric.get_config()


def read(dataset):
    return [{name: column.numpy() for name, column in batch.items()} for batch in dataset]


def test_cloze_batches_hide_items_and_every_epoch_hides_others():
    masking = MaskingSettings(mask_proportion=0.4, max_predictions=4)
    make_batches = lambda: b4r.datasets.cloze_batches(SEQUENCES, 8, 16, masking, seed=3)  # noqa: E731
    dataset, again = make_batches(), make_batches()
    epochs = [read(dataset) for _ in range(2)]
    for batch in epochs[0]:
        assert batch["items"].shape == (16, 8) and batch["mask_targets"].shape == (16, 3)
        hidden = np.take_along_axis(batch["items"], batch["mask_positions"], axis=1)
        assert (hidden[batch["mask_targets"] > 0] == NUM_ITEMS + 1).all()
    assert len(epochs[0]) == dataset.cardinality() == len(epochs[1])
    assert not all(np.array_equal(one["items"], other["items"]) for one, other in zip(*epochs))
    for one, other in zip(epochs[0], read(again), strict=True):
        np.testing.assert_equal(one, other)


def test_last_only_hides_the_last_item_of_every_history():
    dataset = b4r.datasets.cloze_batches(SEQUENCES, 8, 16, last_only=True)
    batch = {name: np.concatenate([one[name] for one in read(dataset)]) for name in dataset.element_spec}
    assert batch["users"].tolist() == list(range(SEQUENCES.num_users))
    for user, positions, targets in zip(batch["users"], batch["mask_positions"], batch["mask_targets"]):
        assert targets[0] == SEQUENCES[user][-1] and not targets[1:].any()
        assert positions[0] == min(len(SEQUENCES[user]), 8) - 1


@pytest.mark.parametrize("name", ["bert4rec", "sasrec", "caser"])
def test_training_batches_are_what_the_model_reads(name):
    options = {"loss": "sampled_softmax", "shared_negatives": 5} if name == "sasrec" else {}
    model = make(name, **options)
    dataset = b4r.datasets.training_batches(model, SEQUENCES, 16)
    first, second = (next(iter(dataset)) for _ in range(2))
    assert np.isfinite(model.training_loss(first)) and ("draw" in first) == (name == "sasrec")
    assert not np.array_equal(first["users"], second["users"])


def test_next_item_batches_are_histories_and_their_last_items():
    ((histories, targets),) = b4r.datasets.next_item_batches(SEQUENCES, SEQUENCES.num_users)
    for user, row, length, target in zip(histories["users"], histories["items"], histories["lengths"], targets):
        assert [*row[:length].numpy().tolist(), int(target)] == SEQUENCES[int(user)].tolist()
        assert not row[length:].numpy().any()


def test_next_item_batches_are_as_wide_as_their_longest_history():
    sequences = b4r.datasets.sequences_of([[1, 2], [3], range(1, 90), [2, 3, 1], [1, 2]])
    widths = [histories["items"].shape for histories, _ in b4r.datasets.next_item_batches(sequences, 2)]
    assert widths == [(2, 88), (2, 2)]
    assert not list(b4r.datasets.next_item_batches(b4r.datasets.sequences_of([[1]])))


def test_plain_lists_become_sequences():
    sequences = b4r.datasets.sequences_of([[3, 1], [2, 2, 3]])
    assert [sequences[user].tolist() for user in range(2)] == [[3, 1], [2, 2, 3]] and sequences.num_items == 3
    assert b4r.datasets.sequences_of([np.array([1.0, 2.0]), []]).lengths.tolist() == [2, 0]
    with pytest.raises(UserError, match=r"`histories` must be whole numbers from 1 to 2\. Received: 3"):
        b4r.datasets.sequences_of([[3, 1]], num_items=2)
    with pytest.raises(UserError, match=r"`histories` must be whole numbers from 1 to \d+\. Received: 4294967298"):
        b4r.datasets.sequences_of([np.array([1, 2**32 + 2, 3])])
    with pytest.raises(UserError, match="No user has two items"):
        b4r.datasets.cloze_batches(b4r.datasets.sequences_of([[3], [1]]))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def mean(values):
    return sum(values) / len(values)


def weigh_by_softmax(values, others):
    total = sum(math.exp(other) for other in others)
    return sum(value * math.exp(other) / total for value, other in zip(values, others))


ORACLES = {
    "SoftmaxCrossEntropy": lambda r, others: -math.log(math.exp(r) / sum(map(math.exp, [r, *others]))),
    "BinaryCrossEntropy": lambda r, others: -math.log(sigmoid(r)) - sum(math.log(1 - sigmoid(o)) for o in others),
    "BPR": lambda r, others: mean([-math.log(sigmoid(r - o)) for o in others]),
    "TOP1": lambda r, others: (sum(sigmoid(o - r) + sigmoid(o * o) for o in others) + 0.5) / (len(others) + 1),
    "TOP1Max": lambda r, others: weigh_by_softmax([sigmoid(o - r) + sigmoid(o * o) for o in others], others),
    "BPRMax": lambda r, others: (
        -math.log(weigh_by_softmax([sigmoid(r - o) for o in others], others))
        + 0.5 * weigh_by_softmax([o * o for o in others], others)
    ),
}


@pytest.mark.parametrize("name", ORACLES)
def test_losses_of_keras_compare_a_target_with_all_other_items(name):
    make_loss = getattr(b4r.losses, name)
    loss = make_loss(0.5) if name == "BPRMax" else make_loss()
    scores = np.random.default_rng(1).normal(size=(2, 3, 7)).astype(np.float32)
    scores[..., 0] = 9.0  # padding
    targets = np.array([[1, 0, 4], [6, 2, 0]])
    rows = [
        (row[target], [*row[1:target], *row[target + 1 :]])
        for target, row in zip(targets.ravel(), scores.reshape(6, 7))
        if target
    ]
    expected = [ORACLES[name](float(score), [float(other) for other in others]) for score, others in rows]
    assert float(loss(targets, scores)) == pytest.approx(mean(expected), rel=1e-5)
    assert float(loss(targets[..., None], scores)) == pytest.approx(mean(expected), rel=1e-5)
    weights = np.array([[1, 5, 0], [0, 0, 5]])
    assert float(loss(targets, scores, weights)) == pytest.approx(expected[0] / 4, rel=1e-5)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
    assert type(again) is type(loss) and float(again(targets, scores)) == float(loss(targets, scores))
    with tf.GradientTape() as tape:
        tape.watch(variable := tf.constant(scores))
        value = loss(targets, variable)
    gradient = tape.gradient(value, variable).numpy()
    assert np.isfinite(gradient).all() and not gradient[..., 0].any() and not gradient[targets == 0].any()
    assert (np.take_along_axis(gradient, targets[..., None], axis=-1)[targets > 0] < 0).all()


@pytest.mark.parametrize("use", [b4r.metrics.NDCG(), b4r.metrics.MRR(), b4r.losses.BPR()])
def test_one_hot_targets_are_refused_in_one_line(use):
    targets = np.eye(4)[[1, 2, 3]]
    message = r"`y_true` must be item numbers, .*; `argmax` makes them of one-hot rows\. Received: .*\(3, 4\)$"
    with pytest.raises(ValueError, match=message):
        use(targets, np.ones((3, 4), np.float32))
    use(targets.argmax(axis=1), np.ones((3, 4), np.float32))
    with pytest.raises(ValueError, match=r"one item number for each row .*of shape \(3,\), scores of shape \(1, 4\)$"):
        use(targets.argmax(axis=1), np.ones((1, 4), np.float32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "mixed_bfloat16"])
def test_losses_whose_targets_would_be_rounded_are_refused(dtype):
    for kind in (b4r.losses.BPR, b4r.losses.BPRMax):
        with pytest.raises(UserError, match=r"`dtype` must be float32 or float64: .*\. Received: dtype=b?float16"):
            kind(dtype=dtype)
        assert kind(dtype="float64").dtype == "float64"
