"""Models that read features: the mean of the vectors of an item's feature values is added to its own vector, and that
of a user's feature values to every position. A content vector of an item or user is projected and added too."""

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from bert4rec_tf.config.model_settings import ADD, ALONE, ITEM_FEATURES, NO, SAMPLE, USER_FEATURES, AttentionSettings
from bert4rec_tf.config.transition_settings import ItemTransitionsSettings
from bert4rec_tf.data.feature_values import Features
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.foundation import npz
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models.evidence_recommender import EvidenceRecommender
from bert4rec_tf.models.initial_vectors import make_cooccurrence_vectors
from bert4rec_tf.models.rows import ITEMS, USERS
from bert4rec_tf.nn import sampling

NEVER = -1e9
"""Added to scores that must not count: of keys that attention must not see, and of rows that are no items."""

UNSEEN_FILE = "unseen.npz"

RIDGE = 1.0
"""The penalty of the first projection of content vectors (`FeatureRecommender.initialise`)."""


def average_features(vectors: Tensor, features: Features, num_before: int, num_after: int) -> tf.Tensor:
    """Returns the mean vector of each row's feature values, float [num_before + rows + num_after, d].

    A row without values is 0, as are the rows added, `num_before` and `num_after`. This is the product S F of a sparse
    matrix S, whose rows hold 1 / (number of values), and `vectors` F, float [v, d].
    """
    rows = len(features.lengths)
    owners = np.repeat(np.arange(rows), features.lengths)
    shares = (1.0 / features.lengths[owners]).astype(np.float32)[:, None]
    # TensorFlow's sparse product takes half the time, but rounds differently.
    values = tf.gather(tf.convert_to_tensor(vectors), features.values)
    return tf.math.unsorted_segment_sum(
        values * tf.cast(shares, values.dtype), (num_before + owners).astype(np.int32), num_before + rows + num_after
    )


class FeatureRecommender(EvidenceRecommender):
    """A network that can read features of items and users (`AttentionSettings`).

    Attributes:
        own_items: the items' own vectors, including padding and special tokens; with `use_item_features=alone`, only
            those of padding and special tokens.
        own_users: the finished vectors of the users of a `fold_features` model; None for any other.
        item_feature_vectors, user_feature_vectors: [F; P], float [v + e, d]: a vector of each feature value, and the
            projection of content vectors; None without features. Each row belongs to one of `Features.names`.
        unseen: the items that training never sees, in rising order, once `adapt` was called with item features.
    """

    settings_type: ClassVar[type[AttentionSettings]]
    unseen: np.ndarray = np.empty(0, np.int64)
    own_items: keras.Variable
    own_users: keras.Variable | None = None
    item_feature_vectors: Any
    user_feature_vectors: Any

    def add_items(self, name: str, rows: int, width: int, initializer: str | keras.Initializer) -> keras.Variable:
        """Makes and returns `own_items`. `rows`: of the whole item table, special tokens included."""
        if self.settings.use_item_features == ALONE:
            self.own_items = self.add_table(name, rows - self.num_items, width, initializer, row_kind=None)
        else:
            self.own_items = self.add_table(name, rows, width, initializer, row_kind=ITEMS)
        return self.own_items

    def add_feature_vectors(self, width: int, *initializers: str | keras.Initializer) -> None:
        """Makes the vectors of feature values and the projections of content vectors.

        Call it last: then all other weights are drawn as without them. `initializers`: of the items' features and of
        the users' features, in this order.
        """
        rows = {name: len(features.names) for name, features in self.features.items()}
        self.item_feature_vectors, self.user_feature_vectors = (
            self.add_table(name, rows[name], width, initializer, row_kind=name) if name in rows else None
            for name, initializer in zip((ITEM_FEATURES, USER_FEATURES), initializers, strict=True)
        )
        self._make_content_vectors()

    def _make_content_vectors(self) -> None:
        # As tensors, they are no part of a graph, which may not be larger than 2 GB.
        self._content_vectors = {
            name: tf.constant(vectors)
            for name, features in self.features.items()
            if (vectors := features.compute_unit_vectors()) is not None
        }

    def save_assets(self, folder: str) -> None:
        """Writes the unseen items too, which the loss of a loaded model reads."""
        super().save_assets(folder)
        if len(self.unseen):
            npz.write(Path(folder) / UNSEEN_FILE, {"items": self.unseen})

    def load_assets(self, folder: str | None) -> None:
        super().load_assets(folder)
        self._make_content_vectors()
        path = Path(folder or "") / UNSEEN_FILE
        self.unseen = npz.read(path)["items"] if folder and path.exists() else np.empty(0, np.int64)

    def add_users(self, vectors: Tensor) -> None:
        """Makes `own_users` of `vectors`, float [m, d]. The model then needs users, but no features of them."""
        self.needs_users, self.num_users = True, vectors.shape[0]
        self.own_users = self.add_table(USERS, self.num_users, vectors.shape[1], "zeros", row_kind=USERS)
        self.own_users.assign(vectors)

    def adapt(self, sequences: Sequences, transitions: ItemTransitionsSettings | None = None) -> None:
        """Also notes, with item features, the items that training never sees.

        As negatives, these items would be pushed down. If they have a content vector, their own vectors become 0: they
        would stay random.
        """
        super().adapt(sequences, transitions)
        if self.settings.use_item_features != NO:
            self.unseen = np.flatnonzero(sequences.count_items()[1:] == 0) + 1
        if self.settings.use_item_features == ADD and ITEM_FEATURES in self._content_vectors:
            rows, content = self.own_items.numpy(), self._content_vectors[ITEM_FEATURES].numpy()
            rows[self.unseen[content[self.unseen - 1].any(axis=1)]] = 0
            self.own_items.assign(rows)

    def initialise(self, sequences: Sequences) -> None:
        """With `initial_vectors=cooccurrence`, sets these vectors, scaled to the standard deviation of the random ones.

        Items without a neighbour keep their random vectors, and so do padding and special tokens. If items have content
        vectors, the projection starts as the ridge regression of these initial vectors on them, and the items' own
        vectors are what remains. So items without a neighbour start near items with similar content vectors.
        """
        if self.settings.initial_vectors != "cooccurrence":
            return
        rows, vectors = self.own_items.numpy(), make_cooccurrence_vectors(sequences, self.own_items.shape[1])
        item_ids = np.flatnonzero(vectors.any(axis=1))
        if len(item_ids):
            random_rows = rows[1:][rows[1:].any(axis=1)]  # `adapt` may have set some to 0
            rows[item_ids] = vectors[item_ids] / vectors[item_ids].std() * random_rows.std()
            if ITEM_FEATURES in self._content_vectors:
                content = self._content_vectors[ITEM_FEATURES].numpy()[item_ids - 1]
                squares = content.T @ content + RIDGE * np.eye(content.shape[1])
                projection = np.linalg.solve(squares, content.T @ rows[item_ids]).astype(np.float32)
                rows[item_ids] -= content @ projection
                other_vectors = self.item_feature_vectors[: -len(projection)]
                self.item_feature_vectors.assign(np.concatenate([other_vectors, projection]))
            self.own_items.assign(rows)

    def make_unseen_penalty(self, rows: int) -> np.ndarray:
        """Returns what to add to training scores, float32 [rows]: NEVER for items that training never sees, else 0."""
        added = np.zeros(rows, np.float32)
        added[self.unseen] = NEVER
        return added

    def apply_loss_to_states(
        self,
        states: Tensor,
        table: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        weights: Tensor,
        batch: Batch,
    ) -> tf.Tensor:
        """Returns the weighted sum of a loss over targets, float [], against all items or a SAMPLE that they share.

        With a sample, only its rows and the targets' are read, so the cost does not grow with the number of items.

        Args:
            states, targets, weights: float [t, d], int32 [t] and float [t].
            table: float [rows, d], from `training_table`.
            bias: float [rows]; None for no bias.
            batch: with a sample, its `draw`, int64 [b, 2], is the same in each row (`Feed.has_sample`).
        """
        if self.loss_entry.negatives != SAMPLE:
            return self.apply_loss(states, table, bias, targets, weights)
        settings = self.settings
        sample, log_counts = sampling.draw_shared_items(
            batch["draw"][0], settings.shared_negatives, self.num_items, settings.negative_sampling
        )
        states = tf.cast(states, table.dtype)
        positives = tf.reduce_sum(states * tf.gather(table, targets), axis=-1)
        negatives = tf.matmul(states, tf.gather(table, sample), transpose_b=True)
        if bias is not None:
            positives, negatives = positives + tf.gather(bias, targets), negatives + tf.gather(bias, sample)
        hits = targets[:, None] == sample
        return tf.reduce_sum(weights * self.apply_loss(positives, negatives, hits, log_counts))

    def item_table(self) -> Tensor:
        """Returns E = T + S F + V P, float [rows, d].

        These are the items' own vectors T, plus the means of their features' vectors F, plus the projections of their
        content vectors V. Call it once per step, because it reads the vector of every feature value of every item.
        """
        use, rows = self.settings.use_item_features, self.own_items
        if use == NO:
            return rows
        if use == ADD:
            return rows + self._make_feature_rows(ITEM_FEATURES, 1, rows.shape[0] - 1 - self.num_items)
        return tf.concat([rows[:1], self._make_feature_rows(ITEM_FEATURES), rows[1:]], axis=0)

    def _make_feature_rows(self, kind: str, num_before: int = 0, num_after: int = 0) -> tf.Tensor:
        """Returns S F + V P of the items or users, float [num_before + rows + num_after, d]. The rows added are 0."""
        self.check_features()
        table = self.item_feature_vectors if kind == ITEM_FEATURES else self.user_feature_vectors
        means = average_features(table, self.features[kind], num_before, num_after)
        if kind not in self._content_vectors:
            return means
        content = self._content_vectors[kind]
        return means + tf.pad(tf.matmul(content, table[-content.shape[1] :]), [[num_before, num_after], [0, 0]])

    def training_table(self) -> Tensor:
        """Returns the item table that the loss reads: `item_table()`.

        If the loss reads few rows, this is the variable itself, of which TensorFlow reads only those rows.
        """
        reads_few = self.loss_entry.negatives == SAMPLE and self.settings.use_item_features == NO
        return self.own_items.value if reads_few else self.item_table()

    def user_table(self) -> Tensor:
        """Returns the vectors of the users' features, S F + V P, float [m, d]."""
        if self.own_users is not None:
            return self.own_users
        return self._make_feature_rows(USER_FEATURES)

    def embed_users(self, users: Tensor) -> tf.Tensor:
        """Returns the vectors of users, int32 [b]: float [b, d]; 0 for unknown users, whose numbers are negative."""
        users = tf.convert_to_tensor(users)
        vectors = tf.gather(tf.convert_to_tensor(self.user_table()), tf.maximum(users, 0))
        return tf.where(users[:, None] < 0, tf.zeros_like(vectors), vectors)


def fold_features(model: Any) -> Any:
    """Returns a model with the same scores that needs no features: their vectors are already part of its tables."""
    if not model.features:
        return model
    settings = dataclasses.replace(model.settings, use_item_features=NO, use_user_features=False)
    options = {name: getattr(model, name) for name in ("num_extra_rows",) if hasattr(model, name)}
    plain_model = type(model)(model.num_items, settings, name=model.name, dtype=model.dtype_policy, **options)
    if model.evidence is not None and model.evidence.built:
        plain_model.evidence.build((model.evidence.num_pairs,))
    values: dict[str, Any] = {weight.path: weight for weight in model.weights}
    for network in model.networks.values() or [model]:
        values[network.own_items.path] = network.item_table()
    for weight in plain_model.weights:
        weight.assign(values[weight.path])
    if model.needs_users:
        plain_model.add_users(model.user_table())
    return plain_model
