"""The formulation of the authors' program, rewritten in plain Python and TensorFlow 2 to be timed.

It handles one user and one record at a time, computes all prediction slots, and uses one-hot labels.
"""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from bert4rec_tf.config.run_record import MaskingSettings
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.models import BERT4Rec


def cut_windows(history: list[str], max_length: int, window_step: float) -> list[list[str]]:
    """Cuts one history into windows, like `cloze.cut_windows`."""
    if len(history) <= max_length:
        return [history]
    stride = max_length if window_step == -1 else int(window_step * max_length)
    starts = [*range(len(history) - max_length, 0, -stride), 0]
    return [history[start : start + max_length] for start in starts[::-1]]


def mask(
    window: list[str], masking: MaskingSettings, vocabulary: list[str], rng: random.Random
) -> tuple[list[str], list[int], list[str]]:
    """Masks one window at random. Returns its tokens, the masked positions and the masked tokens.

    As in the original, every token is searched for in the list of all items.
    """
    order = [place for place, token in enumerate(window) if token in vocabulary]
    rng.shuffle(order)
    num_masked = min(masking.max_predictions, max(1, round(len(window) * masking.mask_proportion)))
    tokens = list(window)
    places: list[int] = []
    used_places: list[int] = []
    for place in order:
        if len(places) >= num_masked:
            break
        if place in used_places:
            continue
        used_places.append(place)
        tokens[place] = "[MASK]"
        places.append(place)
    places.sort()
    return tokens, places, [window[place] for place in places]


def mask_last(window: list[str]) -> tuple[list[str], list[int], list[str]]:
    return [*window[:-1], "[MASK]"], [len(window) - 1], [window[-1]]


def prepare(
    sequences: Sequences, users: np.ndarray, masking: MaskingSettings, max_length: int, path: Path, seed: int
) -> int:
    """Writes the masked examples of these users, one `tf.train.Example` each. Returns their number."""
    raw_ids = sequences.vocabulary.items.tolist()
    ids = {item: number for number, item in enumerate(raw_ids, start=1)} | {"[MASK]": len(raw_ids) + 1}
    rng, instances = random.Random(seed), []
    for user in users:
        history = [raw_ids[item - 1] for item in sequences[user]]
        for window in cut_windows(history, max_length, masking.window_step):
            instances += [(user, *mask(window, masking, raw_ids, rng)) for _ in range(masking.mask_copies)]
            instances.append((user, *mask_last(window)))
    rng.shuffle(instances)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for instance in instances:
            writer.write(serialize(*instance, ids, max_length, masking.max_predictions))
    return len(instances)


def serialize(
    user: int, tokens: list[str], places: list[int], labels: list[str], ids: dict[str, int], length: int, slots: int
) -> bytes:
    """Pads every feature of one example to its full width, weights included."""
    num_padding, num_empty = length - len(tokens), slots - len(places)
    integers = {
        "info": [int(user)],
        "input_ids": [ids[token] for token in tokens] + [0] * num_padding,
        "input_mask": [1] * len(tokens) + [0] * num_padding,
        "masked_lm_positions": places + [0] * num_empty,
        "masked_lm_ids": [ids[label] for label in labels] + [0] * num_empty,
    }
    weights = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0] * len(places) + [0.0] * num_empty))
    features = {
        name: tf.train.Feature(int64_list=tf.train.Int64List(value=values)) for name, values in integers.items()
    }
    features["masked_lm_weights"] = weights
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def read(path: Path, batch_size: int, max_length: int, slots: int) -> tf.data.Dataset:
    """Returns the batches: records are shuffled in a buffer of 100, parsed one at a time, then batched."""
    spec = {
        "info": tf.io.FixedLenFeature([1], tf.int64),
        "input_ids": tf.io.FixedLenFeature([max_length], tf.int64),
        "input_mask": tf.io.FixedLenFeature([max_length], tf.int64),
        "masked_lm_positions": tf.io.FixedLenFeature([slots], tf.int64),
        "masked_lm_ids": tf.io.FixedLenFeature([slots], tf.int64),
        "masked_lm_weights": tf.io.FixedLenFeature([slots], tf.float32),
    }

    def parse(record: tf.Tensor) -> dict[str, tf.Tensor]:
        example = tf.io.parse_single_example(record, spec)
        return {name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value for name, value in example.items()}

    records = tf.data.TFRecordDataset(str(path)).repeat().shuffle(100)
    return records.map(parse, num_parallel_calls=4).batch(batch_size, drop_remainder=True)


def training_loss(model: BERT4Rec, batch: dict[str, tf.Tensor]) -> tf.Tensor:
    """Returns the loss: log-softmax over all items for all prediction slots, times one-hot labels."""
    hidden: tf.Tensor = model.encode(batch["items"], training=True)
    width = hidden.shape[-1]
    rows = tf.reshape(hidden, [-1, width])
    offsets = tf.range(tf.shape(batch["items"])[0])[:, None] * tf.shape(batch["items"])[1]
    states = model.head.transform(tf.gather(rows, tf.reshape(batch["mask_positions"] + offsets, [-1])))
    logits = tf.nn.bias_add(tf.matmul(states, model.item_embeddings, transpose_b=True), model.head.bias)
    likelihoods = tf.nn.log_softmax(logits, axis=-1)
    labels = tf.reshape(batch["mask_targets"], [-1])
    losses = -tf.reduce_sum(likelihoods * tf.one_hot(labels, depth=model.num_rows), axis=-1)
    weights = tf.cast(labels > 0, tf.float32)
    return tf.reduce_sum(weights * losses) / (tf.reduce_sum(weights) + 1e-5)


def draw_candidates(sequences: Sequences, users: np.ndarray, rng: np.random.RandomState) -> list[list[int]]:
    """Draws 100 negatives by popularity, one user at a time, and redraws until enough are unseen."""
    items = np.arange(1, sequences.num_items + 1)
    probabilities = sequences.vocabulary.counts / sequences.vocabulary.counts.sum()
    candidates = []
    for user in users:
        history = sequences[user].tolist()
        negatives: list[int] = []
        while len(negatives) < 100:
            sample = rng.choice(items, 101, replace=False, p=probabilities)
            negatives += [item for item in sample if item not in history and item not in negatives]
        candidates.append(negatives[:100])
    return candidates


Likelihoods = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def make_likelihoods(model: BERT4Rec) -> Likelihoods:
    """Returns a compiled function: items [b, n] and lengths [b] -> the logarithms of the probabilities of all items."""

    @tf.function(reduce_retracing=True)
    def likelihoods(items: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        batch = {"users": tf.zeros_like(lengths), "items": items, "lengths": lengths}
        return tf.nn.log_softmax(model.score(batch))

    return likelihoods


def evaluate(
    likelihoods: Likelihoods,
    max_history: int,
    histories: Sequences,
    users: np.ndarray,
    targets: np.ndarray,
    sequences: Sequences,
    batch_size: int,
) -> list[int]:
    """Returns the ranks of the users' targets: scores all items, then draws candidates and sorts them per user."""
    rng, ranks = np.random.RandomState(1), []
    for start in range(0, len(users), batch_size):
        rows = users[start : start + batch_size]
        items, lengths = histories.take_last(rows, max_history)
        scores = likelihoods(tf.constant(items), tf.constant(lengths)).numpy()
        negatives = draw_candidates(sequences, rows, rng)
        for score, target, user_negatives in zip(scores, targets[start : start + batch_size], negatives):
            candidates = [target, *user_negatives]
            order = (-score[np.array(candidates) - 1]).argsort()
            ranks.append(int(np.flatnonzero(order == 0)[0]))
    return ranks
