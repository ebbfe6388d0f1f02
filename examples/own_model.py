"""A model of your own: it trains, is compared, exported and served, without a change to the package.

Run it in this folder: `python own_model.py`.
"""

from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

import bert4rec_tf as b4r


@dataclass(frozen=True)
class MeanSettings(b4r.Settings):
    hidden_dim: int = b4r.setting(32, "width of the vectors", at_least=1)
    max_length: int = b4r.setting(20, "most items of a training example", at_least=1, may_change=True)


@b4r.register
class MeanOfHistory(b4r.Recommender):
    """Scores an item by its product with the mean of the vectors of a history."""

    settings_type = MeanSettings
    examples = "shifted"  # histories, with the next item at every place
    scores_are_logits = True

    @property
    def example_options(self):
        return {"max_length": self.settings.max_length}

    def make_variables(self):
        rows = self.num_items + 1  # row 0 is padding
        self.inputs_table = self.add_table("inputs", rows, self.settings.hidden_dim, 0.1, row_kind="items")
        self.outputs_table = self.add_table("outputs", rows, self.settings.hidden_dim, 0.1, row_kind="items")
        self.bias = self.add_bias("bias", rows)

    def running_means(self, items):
        vectors = tf.gather(self.inputs_table, items) * tf.cast(items != 0, tf.float32)[:, :, None]
        counts = tf.cumsum(tf.cast(items != 0, tf.float32), axis=1)
        return tf.cumsum(vectors, axis=1) / tf.maximum(counts, 1.0)[:, :, None]

    def training_loss(self, batch, training=True):
        logits = tf.matmul(self.running_means(batch["items"]), self.outputs_table, transpose_b=True) + self.bias
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["targets"], logits)
        weights = tf.cast(batch["targets"] != 0, tf.float32)
        return tf.reduce_sum(losses * weights) / tf.maximum(tf.reduce_sum(weights), 1.0)

    def loss_weight(self, batch):
        return tf.reduce_sum(tf.cast(batch["targets"] != 0, tf.float32))  # the loss is a mean over the targets

    def user_vectors(self, batch, training=False):
        return self.running_means(batch["items"])[:, -1]

    def score_products(self):
        return self.outputs_table, self.bias


if __name__ == "__main__":
    actions = Path(__file__).with_name("actions.csv")
    print(b4r.compare(actions, models=["pop", MeanOfHistory], steps=300, evaluate_every=100, silent=True))
    model = b4r.fit(actions, model=MeanOfHistory, steps=300, evaluate_every=100, silent=True)
    print(model.recommend(history=["P028", "P001"], k=3))
