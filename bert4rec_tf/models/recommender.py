"""The contract of all models."""

import dataclasses
from typing import Any, ClassVar

import keras
import tensorflow as tf

from bert4rec_tf.config.settings import Settings
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.foundation.errors import UserError, unknown_name
from bert4rec_tf.foundation.types import Batch, Shape, Tensor
from bert4rec_tf.nn.layers import check_size

ITEMS, USERS = "items", "users"
FROM_FIRST, FROM_LAST = "positions from the first", "positions from the last"
"""What the rows of a weight stand for: row i for item i (row 0 is padding, rows past n are special tokens), row u for
user u, row p for the item with p others before it, or the last row for the newest item and so on."""

KERAS_OPTIONS = ("name", "dtype", "trainable")
"""Arguments of every model that are Keras' own."""


class Recommender(keras.Model):
    """What training, evaluation and export ask of a model.

    A model defines `settings_type`, `examples`, `training_loss`, `user_vectors` and `score_vectors`, and makes its
    variables in its constructor. Items are 1 .. n, 0 pads rows on the right; users are 0 .. m - 1.

    Args:
        num_items: n.
        settings: what the model is to be, of its `settings_type`. In its place single fields may be given by their
            names; the others then have their defaults: `SASRec(1000, hidden_dim=64)`.
        num_users: m, where it `has_user_embeddings`.
        **options: fields of the settings, and Keras' `name`, `dtype` and `trainable`.

    Raises:
        UserError: for settings together with fields of them, an unknown name, or a value out of its range.
        ValueError: for no items, or no users where they are needed.

    Attributes:
        num_items, num_users: as above.
        settings: as above, with all defaults filled in.
        settings_type: the dataclass of its settings, which names the model too (`config.model_settings`).
        examples: the kind of training example it eats; None where it only counts (`adapt`).
        example_options: what that kind is made with.
        has_user_embeddings: whether it has parameters for each user, and so only serves those it was trained on.
        max_history: how many of the last items of a history it reads; None for any number.
        scores_are_logits: whether `score` gives logits of a softmax over the items.
        static_shapes: set where XLA compiles the step: then no shape in `training_loss` may depend on what the batch
            holds, so slots without a target are computed too, and weigh nothing.
    """

    settings_type: ClassVar[type[Settings]]
    settings: Any
    examples: ClassVar[str | None] = None
    example_options: dict[str, Any] = {}  # noqa: RUF012
    has_user_embeddings: ClassVar[bool] = False
    max_history: int | None = None
    scores_are_logits: bool = False
    static_shapes: bool = False

    def __init__(
        self, num_items: int, settings: Settings | None = None, *, num_users: int | None = None, **options: Any
    ) -> None:
        of_keras = {name: options.pop(name) for name in KERAS_OPTIONS if name in options}
        super().__init__(**of_keras)
        self.settings = settings_of(type(self).settings_type, settings, options)
        self.num_items = check_size("num_items", num_items)
        if (num_users is not None) != self.has_user_embeddings:
            wanted = "a number" if self.has_user_embeddings else "left out"
            raise ValueError(f"`num_users` must be {wanted} for {type(self).__name__}. Received: num_users={num_users}")
        self.num_users = None if num_users is None else check_size("num_users", num_users)
        self._row_kinds: dict[str, str] = {}

    def build(self, input_shape: Shape | None = None) -> None:
        """The constructor has made the variables already."""

    def training_loss(self, batch: Batch) -> Tensor:
        """Returns the loss of a training batch, float32 []. What the batch holds depends on `examples`."""
        raise TypeError(f"{type(self).__name__} is not trained by steps")

    def of_targets(self, targets: Tensor, *columns: Tensor) -> list[Tensor]:
        """Returns `targets [b, n]` and `columns [b, n, ...]` as [t] and [t, ...]: those of the targets that are no
        padding, or with `static_shapes` of all."""
        rows = (targets, *columns)
        if self.static_shapes:
            return [tf.reshape(row, tf.concat([[-1], tf.shape(row)[2:]], axis=0)) for row in rows]
        return [tf.boolean_mask(row, targets > 0) for row in rows]

    def loss_weight(self, batch: Batch) -> Tensor:
        """Returns what `training_loss` divides a sum by, float32 []; the rows, unless a model's loss has other terms.

        The share of a part of a batch is its weight divided by that of the batch.
        """
        return tf.cast(tf.shape(batch["users"])[0], tf.float32)

    def score(self, batch: Batch, candidates: Tensor | None = None) -> Tensor:
        """Scores what may come next; higher is better.

        Args:
            batch: `users [b]`, `items [b, n]` histories oldest first, right-padded, and `lengths [b]`.
            candidates: int32 [b, c] item ids, or None for all items. 0 stands for no candidate; its score is of no
                meaning.

        Returns:
            float32 [b, c]; for all items [b, num_items], column j for item j + 1.
        """
        return self.score_vectors(self.user_vectors(batch), candidates)

    def user_vectors(self, batch: Batch) -> Tensor:
        """Returns float32 [b, d], all that the model knows of whom it recommends to. `batch`: as for `score`."""
        raise TypeError(f"{type(self).__name__} must define `user_vectors`")

    def score_vectors(self, vectors: Tensor, candidates: Tensor | None = None) -> Tensor:
        """Scores what may come next for users of whom only the vectors are known.

        Args:
            vectors: float32 [b, d], of `user_vectors`.
            candidates: as for `score`.

        Returns:
            As `score` does.
        """
        raise TypeError(f"{type(self).__name__} must define `score_vectors`")

    def adapt(self, sequences: Sequences) -> None:
        """Learns from what can be counted in the training sequences, before training."""

    def call(self, batch: Batch) -> Tensor:
        """Scores all items, as `score` does."""
        return self.score(batch)

    def add_table(
        self, name: str, rows: int, width: int, initializer: float | str | keras.initializers.Initializer, of: str
    ) -> keras.Variable:
        """Makes embeddings [rows, width], and notes `of` what (`mark_rows`).

        Normal with the deviation `initializer`, or by an initializer of Keras.
        """
        if isinstance(initializer, float):
            initializer = keras.initializers.RandomNormal(stddev=initializer)
        table = self.add_weight(name=name, shape=(rows, width), initializer=initializer, autocast=False)
        return self.mark_rows(table, of)

    def add_bias(self, name: str, rows: int) -> keras.Variable:
        """Makes a number for each item, 0 at first."""
        bias = self.add_weight(name=name, shape=(rows,), initializer="zeros", autocast=False)
        return self.mark_rows(bias, ITEMS)

    def mark_rows(self, variable: keras.Variable, of: str) -> keras.Variable:
        """Notes what the rows of a weight stand for: ITEMS, USERS, FROM_FIRST or FROM_LAST. Returns the weight.

        Every weight that grows with the items, the users or `max_length` must be noted: a warm start moves its rows.
        """
        self._row_kinds[variable.path] = of
        return variable

    def rows_of(self, variable: keras.Variable) -> str | None:
        """Returns what `mark_rows` noted of a weight; None where its rows stand for nothing that may change."""
        return self._row_kinds.get(variable.path)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments as JSON can hold them, the settings field by field."""
        users = {} if self.num_users is None else {"num_users": self.num_users}
        return {**super().get_config(), "num_items": self.num_items, **users, **dataclasses.asdict(self.settings)}


def settings_of(kind: type[Settings], settings: Settings | None, fields: dict[str, Any]) -> Settings:
    """Returns the settings that a constructor was given, whole or by single fields. Raises UserError as that does."""
    if settings is None:
        known = [field.name for field in dataclasses.fields(kind)]
        for name in fields:
            if name not in known:
                raise unknown_name(f"field of {kind.__name__}", name, known)
        return kind(**fields)
    if type(settings) is not kind:
        raise UserError(f"`settings` must be {kind.__name__}. Received: settings={settings!r}")
    if fields:
        raise UserError(f"`{next(iter(fields))}` must be given in `settings` or by its name. Received: both")
    return settings


def scores_of(state: Tensor, table: Tensor, candidates: Tensor | None, bias: Tensor | None = None) -> tf.Tensor:
    """Returns the products of states [b, d] with the rows [n + 1, d] of candidates [b, c], or of all items."""
    if candidates is None:
        # The scores are cut and not the table: without its first row most widths leave it unaligned, and it is copied.
        scores = tf.matmul(state, table, transpose_b=True)[:, 1:]
        return scores if bias is None else scores + bias[1:]
    scores = tf.einsum("bd,bcd->bc", state, tf.gather(table, candidates))
    return scores if bias is None else scores + tf.gather(bias, candidates)


def last_items_in_order(batch: Batch, most: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the last `most` items of each history, int32 [b, n] right-padded, n <= most, and how many, int32 [b]."""
    items, lengths = tf.cast(batch["items"], tf.int32), tf.cast(batch["lengths"], tf.int32)
    width = tf.shape(items)[1]
    passed = tf.maximum(lengths - most, 0)
    columns = tf.range(tf.minimum(width, most))[None, :] + passed[:, None]
    kept = lengths - passed
    taken = tf.gather(items, tf.minimum(columns, width - 1), batch_dims=1)
    return tf.where(columns < lengths[:, None], taken, 0), kept


def last_items(batch: Batch, number: int) -> tf.Tensor:
    """Returns the last items of each history, int32 [b, number], left-padded with 0: the newest in the last column."""
    items, lengths = tf.cast(batch["items"], tf.int32), tf.cast(batch["lengths"], tf.int32)
    columns = lengths[:, None] - number + tf.range(number)[None, :]
    # One column more, for a history may have none at all.
    filled = tf.pad(items, [[0, 0], [0, 1]])
    return tf.where(columns >= 0, tf.gather(filled, tf.maximum(columns, 0), batch_dims=1), 0)
