"""Models to export, what they should answer, and how to ask a SavedModel."""

import functools

import keras
import numpy as np
import tensorflow as tf

from bert4rec_tf.config.model_settings import PopSettings
from bert4rec_tf.data.sequences import Vocabulary
from bert4rec_tf.models import BERT4Rec, Pop, Recommender

AWKWARD = [
    *("two words", " leading", "trailing ", "  ", "tab\tinside", "\t", "a,b", '"quoted"', "it's", "# no comment"),
    *("Ünïcödé", "日本語", "🎬", "\ufeffmark", "line\u2028end", "next\x85line", "\x0bup", "form\x0c", "nul\x00l"),
    *("0", "-1", "nan", "None", "[MASK]", "%s"),
]
NAMES = [*AWKWARD, *(f"item {number}" for number in range(30 - len(AWKWARD)))]
NUM_ITEMS, LENGTH, K = 30, 6, 7
COUNTS = np.array([20, 20, 17, *[9] * 12, *[4] * 15], np.int64)
VOCABULARY = Vocabulary(np.array(NAMES, object), COUNTS)
USERS = ["ann", "日本", "two words"]
LOG_SHARES = np.log(COUNTS / COUNTS.sum())

HISTORIES = [
    ["two words", "日本語", "0"],
    [],
    ["🎬", "", "unknown", "nul\x00l", "", "🎬"],
    ["", "", "unknown"],
    NAMES[:25],
    ["item 3"],
]


class Fixed(Recommender):
    """Gives every history the same scores, and cannot read a batch without columns."""

    settings_type = PopSettings

    def __init__(self, scores):
        super().__init__(len(scores))
        self.table = self.add_weight(shape=(len(scores),), autocast=False)
        self.table.assign(scores)

    def user_vectors(self, batch):
        assert {batch[name].dtype for name in ("users", "items", "lengths")} == {tf.int32}
        return tf.cast(batch["users"] + 0 * batch["items"][:, 0], tf.float32)[:, None]

    def score_vectors(self, vectors, candidates=None):
        scores = self.table.value[None, :] + tf.cast(vectors, self.table.dtype)
        return scores if candidates is None else tf.gather(scores, tf.maximum(candidates - 1, 0), batch_dims=1)


def transformer(**changes):
    keras.utils.set_random_seed(3)
    size = {"max_length": LENGTH, "hidden_dim": 8, "num_heads": 2, "initializer_stddev": 0.3, "dropout": 0.5}
    return BERT4Rec(NUM_ITEMS, **{**size, **changes})


def popular():
    model = Pop(NUM_ITEMS)
    model.counts.assign([0, *COUNTS])
    return model


def log_probabilities(model):
    """The Cloze question by `encode` alone: the last N - 1 items, the mask token, and a softmax over the items."""

    @functools.cache
    def after(last):
        hidden = model.encode(np.array([[*last, NUM_ITEMS + 1]], np.int32))[:, -1]
        logits = np.asarray(model.head(hidden, model.item_embeddings), np.float64)[0, 1 : NUM_ITEMS + 1]
        return logits - np.log(np.exp(logits).sum())

    return lambda known: after(tuple(known[-(LENGTH - 1) :]))


def rectangle(histories, width=0):
    width = max([width, *map(len, histories)])
    rows = [[name.encode() for name in history] + [b""] * (width - len(history)) for history in histories]
    return tf.constant(rows, tf.string, shape=[len(rows), width])


def ask(loaded, histories, width=0):
    found = loaded.signatures["serving_default"](histories=rectangle(histories, width))
    return [[name.decode() for name in row] for row in found["items"].numpy().tolist()], found["scores"].numpy()
