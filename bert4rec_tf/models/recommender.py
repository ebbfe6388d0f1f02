"""The contract of all models."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import keras
import pandas as pd
import tensorflow as tf

from bert4rec_tf.config.model_settings import (
    LOSSES,
    USER_FEATURES,
    Loss,
    list_used_features,
    samples_items,
)
from bert4rec_tf.config.setting_fields import Settings, resolve_settings
from bert4rec_tf.config.transition_settings import ItemTransitionsSettings
from bert4rec_tf.data.feature_values import Features, select_features
from bert4rec_tf.data.sequences import Sequences, Vocabulary
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.graphs import tf_function
from bert4rec_tf.foundation.types import Batch, Shape, Tensor
from bert4rec_tf.models import raw_ids
from bert4rec_tf.models.batch_checks import UNKNOWN_USER
from bert4rec_tf.models.keras_model import KerasModel
from bert4rec_tf.models.raw_ids import ModelIds
from bert4rec_tf.models.rows import ITEMS, ROW_KINDS, USERS
from bert4rec_tf.nn import losses
from bert4rec_tf.nn.layers import check_size

KERAS_OPTIONS = ("name", "dtype", "trainable")
"""Constructor arguments that are Keras' own."""

NEXT_ITEMS_SEED = (1, 0)
"""Draws the negatives of `expect_next_items`: always the same, so that the losses of two passes compare."""

LARGE_TABLE = 1 << 24
"""A table with at least this many numbers is initialised in a graph."""


class TiedTable(keras.layers.ReversibleEmbedding):
    """A table of a model [rows, width], which gives it a row of `summary`.

    The model tracks the variable too, as a weight of its own, and saves it.
    """

    def build(self, input_shape: Shape | None = None) -> None:
        self._embeddings = self.add_weight(
            name=self.name,
            shape=(self.input_dim, self.output_dim),
            initializer=self.embeddings_initializer,
            autocast=False,
        )

    def enable_lora(self, *arguments: Any, **options: Any) -> None:
        raise NotImplementedError("LoRA works for the dense layers of a model, not for its tables")

    def save_own_variables(self, store: Any) -> None:
        """Saves nothing: the model does."""

    def load_own_variables(self, store: Any) -> None:
        """Loads nothing: the model does."""


class Recommender(KerasModel):
    """What training, evaluation and export need from a model.

    A model defines `settings_type`, `examples`, `make_variables`, `training_loss`, `user_vectors`, and `score_products`
    or `score_vectors`. Items are 1 .. n, 0 pads rows on the right; users are 0 .. m - 1.

    Args:
        num_items: n.
        settings: of type `settings_type`. Or give single fields by name; the others keep their defaults:
            `SASRec(1000, hidden_dim=64)`.
        num_users: m, if the model `needs_users`.
        features: kind -> `Features` (ITEM_FEATURES, USER_FEATURES), with rows in the order of the items or users; or
            what `Features.sizes` returned, until `load_assets`. The model ignores those that its settings do not use.
        **options: fields of the settings, and Keras' `name`, `dtype` and `trainable`.

    Raises:
        UserError: if both settings and fields are given, for an unknown name or a value out of its range, if `features`
            that the settings use are missing or have another number of rows, or if `dtype` has other weights than
            float32.
        ValueError: for no items, or if `num_users` is missing or not needed.

    Attributes:
        num_items, num_users, settings: as above, with all defaults filled in.
        settings_type: the dataclass of its settings; `MODEL_SETTINGS` maps the model's name to it.
        title: what model cards call it; empty for the name of its class.
        examples: the kind of example it is trained on; None if it only counts (`adapt`).
        example_options: the options with which these examples are made.
        needs_users: whether it needs the user of a history: it has weights or features of each user.
        scores_unknown_users: whether it can score an unknown user, whose number is -1, by the history alone.
        max_history: how many of a history's last items it reads; None for all.
        evidence: the `TransitionEvidence` that scores read, whose weights are made when it is counted; or None.
        scores_are_logits: whether `score` gives logits of a softmax over the items.
        scores_are_shared: whether all users have the same scores, whatever their histories.
        ids: the raw ids of items and users (`ModelIds`), once `adapt` was called; else None.
        networks: by name, the models that this one consists of, which are trained side by side; empty for a single one.
    """

    settings_type: ClassVar[type[Settings]]
    settings: Any
    title: ClassVar[str] = ""
    examples: ClassVar[str | None] = None
    needs_users: bool = False
    scores_unknown_users: ClassVar[bool] = False
    max_history: int | None = None
    scores_are_logits: bool = False
    scores_are_shared: ClassVar[bool] = False
    evidence: Any = None
    ids: ModelIds | None = None
    networks: Mapping[str, "Recommender"] = {}

    def __init__(
        self,
        num_items: int,
        settings: Settings | None = None,
        *,
        num_users: int | None = None,
        features: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        keras_options = {name: options.pop(name) for name in KERAS_OPTIONS if name in options}
        super().__init__(**keras_options)
        if self.variable_dtype != "float32":
            raise UserError(
                f"`dtype` must have float32 weights, as mixed_bfloat16 does. Received: dtype={self.variable_dtype}"
            )
        self.settings = resolve_settings(type(self).settings_type, settings, options)
        self.num_items = check_size("num_items", num_items)
        self.needs_users = type(self).needs_users or USER_FEATURES in list_used_features(self.settings)
        if (num_users is not None) != self.needs_users:
            form = "a number" if self.needs_users else "left out"
            raise ValueError(f"`num_users` must be {form} for {type(self).__name__}. Received: num_users={num_users}")
        self.num_users = None if num_users is None else check_size("num_users", num_users)
        all_features = {
            name: content if isinstance(content, Features) else Features.from_sizes(content)
            for name, content in (features or {}).items()
        }
        self._lacks_features = any(not isinstance(content, Features) for content in (features or {}).values())
        self.features = select_features(self.settings, all_features, self.num_items, self.num_users)
        self._row_kinds: dict[str, str | None] = {}
        self._tables: dict[str, TiedTable] = {}
        self.make_variables()
        self._refuse_untracked()
        self.built = True

    @property
    def example_options(self) -> dict[str, Any]:
        return {}

    def make_variables(self) -> None:
        """Makes the weights and layers. The constructor calls it last, after it has set the attributes above."""

    def _refuse_untracked(self) -> None:
        """Raises UserError for a variable that Keras neither trains nor saves."""
        for name, value in ((name, value) for layer in self._flatten_layers() for name, value in vars(layer).items()):
            values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
            if not name.startswith("_self_") and any(isinstance(part, tf.Variable) for part in values):
                raise UserError(f"`{name}` must be made by `add_weight` or `keras.Variable`. Received: a tf.Variable")

    def add_table(
        self, name: str, rows: int, width: int, initializer: float | str | keras.Initializer, row_kind: str | None
    ) -> keras.Variable:
        """Makes a table of embeddings [rows, width].

        `initializer` is a Keras initializer, or the standard deviation of a normal distribution. `row_kind` says what
        the rows are (`mark_rows`); None if their number is always the same.
        """
        if isinstance(initializer, float):
            initializer = keras.initializers.RandomNormal(stddev=initializer)
        initializer = keras.initializers.get(initializer)
        if rows * width >= LARGE_TABLE:  # a graph scales in place; else each operation has its own copy of the table
            initializer = tf_function(initializer)
        table = TiedTable(rows, width, embeddings_initializer=initializer, dtype=self.dtype_policy, name=name)
        table.build()
        self._tables[name] = table
        return self.mark_rows(table.embeddings, row_kind)

    def add_bias(self, name: str, rows: int) -> keras.Variable:
        """Makes the biases of items, float [rows], which are 0 at first."""
        bias = self.add_weight(name=name, shape=(rows,), initializer="zeros", autocast=False)
        return self.mark_rows(bias, ITEMS)

    def mark_rows(self, variable: keras.Variable, row_kind: str | None) -> keras.Variable:
        """Records what the rows of a weight are (ITEMS, USERS, ...). Returns the weight.

        Mark every weight that grows with the items, users, features or `max_length`: a warm start moves its rows.

        Raises UserError for an unknown kind, or too few rows.
        """
        if row_kind not in (None, *ROW_KINDS):
            raise UserError(
                f"`row_kind` must be None or one of {', '.join(ROW_KINDS)}. Received: row_kind={row_kind!r}"
            )
        fewest = {ITEMS: self.num_items + 1, USERS: self.num_users or 0}.get(row_kind or "", 0)
        if fewest and variable.shape[0] < fewest:
            raise UserError(
                f"`{variable.name}` must have {fewest} rows or more with row_kind={row_kind}. "
                f"Received: {variable.shape[0]}"
            )
        self._row_kinds[variable.path] = row_kind
        return variable

    def build(self, input_shape: Shape | None = None) -> None:
        """Does nothing: `make_variables` has made the variables."""

    def choose_batch_sizes(self, batch_size: int) -> dict[str, int]:
        """Returns, for each of `networks`, how many examples it has in a step of a run with this `batch_size`."""
        return dict.fromkeys(self.networks, batch_size)

    def training_loss(self, batch: Batch, training: bool = True) -> Tensor:
        """Returns the loss of a training batch, float32 [], or [p] for p networks; their sum is minimised.

        What the batch holds depends on `examples`. `training`: whether dropout acts.
        """
        raise UserError(f"{type(self).__name__} is not trained by steps; call `model.adapt(sequences)` instead")

    @property
    def loss_entry(self) -> Loss:
        return LOSSES[self.settings.loss]

    def apply_loss(self, *inputs: Tensor) -> Tensor:
        """Returns what the function of `settings.loss` returns for its inputs, with the settings that it takes."""
        entry = self.loss_entry
        return getattr(losses, entry.function)(*inputs, *(getattr(self.settings, name) for name in entry.settings))

    def loss_weight(self, batch: Batch) -> Tensor:
        """Returns the weight of a batch in each loss, float32 [] or [p]: here the number of rows.

        If replicas split a batch, the loss of each part is multiplied by its share of this weight: the number of what
        the loss is a mean of.
        """
        return tf.cast(tf.shape(batch["users"])[0], tf.float32)

    def expect_next_items(self, batch: Batch, targets: Tensor) -> Batch:
        """Returns a batch for `training_loss` whose only targets are the items that come next.

        Negatives are drawn uniformly from all items but the target, always by NEXT_ITEMS_SEED.

        Args:
            batch: `items [b, n]` and `lengths [b]`, as for `score`; `users [b]` if the model reads users.
            targets: int32 [b]; 0 for a row that does not count.
        """
        options, rows, columns = self.example_options, tf.shape(targets)[0], self._start_next_items(batch, targets)

        def draw(*shape: Tensor | int) -> tf.Tensor:
            if self.num_items == 1:
                raise UserError("`num_items` must be at least 2, so that there is a negative to draw. Received: 1")
            size = [rows, *shape]
            numbers = tf.random.stateless_uniform(size, NEXT_ITEMS_SEED, 1, self.num_items, tf.int32, alg="philox")
            return numbers + tf.cast(numbers >= tf.reshape(targets, [rows, *[1] * len(shape)]), tf.int32)

        items, lengths = last_items_in_order(batch, options.get("context", options.get("max_length", 0)))
        columns |= {"items": items, "lengths": lengths}
        if self.examples == "contexts":
            num_unused = options.get("num_targets", 1) - 1
            columns["negatives"] = draw(options.get("num_negatives", 1))
            return {**columns, "targets": tf.pad(targets[:, None], [[0, 0], [0, num_unused]])}
        width = tf.shape(items)[1]
        is_last = tf.range(width)[None, :] == lengths[:, None] - 1
        columns |= {
            "negatives": draw(width, options.get("num_negatives", 0)),
            "shared": draw(options.get("num_shared", 0)),
        }
        return {**columns, "targets": tf.where(is_last, targets[:, None], 0)}

    def _start_next_items(self, batch: Batch, targets: Tensor) -> dict[str, Tensor]:
        """Returns the columns of `expect_next_items` that all kinds of examples have."""
        rows = tf.shape(targets)[0]
        default_user = UNKNOWN_USER if self.scores_unknown_users else 0
        columns = {"users": batch.get("users", tf.fill([rows], default_user))}
        if samples_items(self.settings):
            columns["draw"] = tf.tile(tf.constant([NEXT_ITEMS_SEED], tf.int64), [rows, 1])
        return columns

    def score(self, batch: Batch, candidates: Tensor | None = None) -> Tensor:
        """Scores what may come next; higher is better.

        Args:
            batch: `users [b]`, `items [b, n]` histories oldest first, right-padded, and `lengths [b]`.
            candidates: int32 [b, c] item ids, or None for all items. 0 is padding; its score means nothing.

        Returns:
            float32 [b, c]; for all items [b, num_items], column j for item j + 1.
        """
        vectors = self.user_vectors(batch)
        _check_width("user_vectors", vectors)
        scores = self.score_vectors(vectors, candidates)
        _check_width("score_vectors", scores, self.num_items if candidates is None else None)
        return scores

    def user_vectors(self, batch: Batch, training: bool = False) -> Tensor:
        """Returns float32 [b, d]: all that scoring needs to know of a user and history. `batch`: as for `score`.

        With `training`, dropout acts.
        """
        raise TypeError(f"{type(self).__name__} must define `user_vectors`")

    def score_vectors(self, vectors: Tensor, candidates: Tensor | None = None) -> Tensor:
        """Returns what `score` returns, computed from `vectors`, float32 [b, d], of `user_vectors`."""
        products = self.score_products()
        if products is None:
            raise TypeError(f"{type(self).__name__} must define `score_products` or `score_vectors`")
        check_products(products, self.num_items)
        return multiply_rows(vectors, *products, candidates, self.num_items)

    def find_cold(self, lengths: Tensor, vectors: Tensor) -> Tensor:
        """Returns whose history tells the model nothing, bool [b]: an export recommends to them what is popular.

        `lengths`: int32 [b], of the histories. `vectors`: float32 [b, d], of `user_vectors`.
        """
        return lengths == 0

    def score_products(self) -> tuple[Tensor, Tensor | None] | None:
        """Returns the item table, float32 [n + 1 or more, d], and the biases, [n + 1 or more] or None for no biases.

        The score of item i is the product of a user's vector with row i of the table, plus bias i. Returns None if
        scores are not such products; then the model defines `score_vectors`.
        """
        return None

    def item_vectors(self) -> Tensor | None:
        """Returns the vectors with which items are scored, float32 [n, d], row i - 1 for item i; None if none exist."""
        products = self.score_products()
        return None if products is None else products[0][1 : self.num_items + 1]

    def similarities(self, items: Tensor) -> Tensor | None:
        """Returns how similar every item is to each of `items`, int32 [b]: float32 [b, n], by default cosines.

        Items that are not similar at all may have -inf. Returns None if the model cannot compare items.
        """
        vectors = self.item_vectors()
        if vectors is None:
            return None
        vectors = tf.math.l2_normalize(tf.cast(vectors, tf.float32), axis=1)
        return tf.matmul(tf.gather(vectors, tf.convert_to_tensor(items) - 1), vectors, transpose_b=True)

    def adapt(self, sequences: Sequences, transitions: ItemTransitionsSettings | None = None) -> None:
        """Keeps the raw ids, and counts, before training, what the model needs to know of the training sequences.

        `transitions`: how a model with evidence counts transitions; None for its own settings. Raises UserError for
        `sequences` of another number of items, or of another number of pairs than evidence that was counted before.
        """
        raw_ids.check_catalogue(self, sequences)
        item_type = sequences.columns.get("item", {}).get("type", "")
        self.ids = ModelIds(sequences.vocabulary, sequences.users if self.needs_users else (), item_type)

    def recommend(
        self, history: Iterable[Any] = (), k: int = 10, user: Any = None, exclude_seen: bool = True
    ) -> pd.DataFrame:
        """Recommends after a history, by the raw ids of the data that `adapt` got; a Keras file keeps them.

        Args:
            history: items, oldest first. Unknown ones are skipped with a warning.
            k: number of items.
            user: for models that need users.
            exclude_seen: whether to leave out the items of the history.

        Returns:
            Columns `rank` (from 1), `item` and `score`: its log-probability among all items, if scores are logits.

        Raises:
            UserError: if the model has no raw ids, or needs a user and does not know this one.
        """
        return raw_ids.recommend(self, history, k, user, exclude_seen)

    def grow(
        self, new_items: Iterable[Any] | Vocabulary, features: Mapping[str, Features] | None = None
    ) -> "Recommender":
        """Returns a model with more items, which has the weights of this one. Rows of new items are random.

        Compile it again, and call `adapt` if it has evidence or item features. The optimizer's state does not grow.

        Args:
            new_items: raw ids, which get the numbers after the others; a model without raw ids has "1" to "n". Or the
                vocabulary of other data, whose numbers the new model has: rows match by raw id, and a warning says how
                many items are lost.
            features: of all items, for a model with item features (ITEM_FEATURES).

        Raises:
            UserError: for items that the model has, and missing features.
        """
        return raw_ids.grow(self, new_items, features)

    def initialise(self, sequences: Sequences) -> None:
        """Sets initial weights from the training sequences, before the first step. By default, sets none."""

    def row_kind(self, variable: keras.Variable) -> str | None:
        """Returns what `mark_rows` recorded for a weight; None if it was not marked."""
        return self._row_kinds.get(variable.path)

    def list_row_tables(self) -> list[keras.Variable]:
        """Returns the trainable weights whose rows are items or users."""
        return [variable for variable in self.trainable_variables if self.row_kind(variable) in (ITEMS, USERS)]

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments in JSON's types, each setting by its name; of features, the sizes."""
        users: dict[str, Any] = {} if self.num_users is None else {"num_users": self.num_users}
        if self.features:
            users["features"] = {name: features.sizes for name, features in self.features.items()}
        return {**super().get_config(), "num_items": self.num_items, **users, **dataclasses.asdict(self.settings)}


def multiply_rows(
    vectors: Tensor, table: Tensor, bias: Tensor | None, candidates: Tensor | None, num_items: int | None = None
) -> tf.Tensor:
    """Returns scores, [b, c] for candidates [b, c] or [b, num_items] for all items (None).

    A score is the product of a vector, [b, d], with an item's row, plus its bias. `table` and `bias`: as
    `Recommender.score_products` returns them. `num_items`: None for all rows of the table but the first.
    """
    if candidates is None:
        # Cut the scores, not the table: without its first row the table is mostly unaligned, and would be copied.
        scores = tf.matmul(vectors, table, transpose_b=True)
        return (scores if bias is None else scores + bias)[:, 1 : None if num_items is None else num_items + 1]
    scores = tf.einsum("bd,bcd->bc", vectors, tf.gather(table, candidates))
    return scores if bias is None else scores + tf.gather(bias, candidates)


def _check_width(name: str, result: Tensor, width: int | None = None) -> None:
    """Raises UserError if what the method `name` returns is surely no table [any, `width`]; None for any width."""
    shape = getattr(result, "shape", None)
    if shape is None or not tf.TensorShape(shape).is_compatible_with([None, width]):
        received = type(result).__name__ if shape is None else f"shape {shape}"
        raise UserError(f"`{name}` must return a tensor [b, {width or 'any'}]. Received: {received}")


def check_products(products: tuple[Tensor, Tensor | None], num_items: int) -> None:
    """Raises UserError unless the table and the biases of `Recommender.score_products` have a row for each item."""
    if not isinstance(products, tuple) or len(products) != 2:
        raise UserError(f"`score_products` must return a table and biases or None. Received: {type(products).__name__}")
    heights = [part.shape[0] for part in products if part is not None and part.shape[0] is not None]
    if heights and (min(heights) <= num_items or max(heights) > min(heights)):
        raise UserError(
            f"`score_products` must return a table and biases of equally many rows, at least {num_items + 1}, of "
            f"which the first is padding. Received: {' and '.join(map(str, heights))} rows"
        )


def last_items_in_order(batch: Batch, max_items: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the last `max_items` items of each history, int32 [b, n], right-padded, and how many they are, int32 [b].

    n is at least 1: if `items` has no columns, the result has one column of padding.
    """
    items, lengths = tf.cast(batch["items"], tf.int32), tf.cast(batch["lengths"], tf.int32)
    width, starts = tf.shape(items)[1], tf.maximum(lengths - max_items, 0)
    columns = tf.range(tf.maximum(tf.minimum(width, max_items), 1))[None, :] + starts[:, None]
    values = tf.gather(tf.pad(items, [[0, 0], [0, 1]]), tf.minimum(columns, width), batch_dims=1)
    return tf.where(columns < lengths[:, None], values, 0), lengths - starts


def last_items(batch: Batch, number: int) -> tf.Tensor:
    """Returns the last items of each history, int32 [b, number], left-padded with 0: the newest in the last column."""
    items, lengths = tf.cast(batch["items"], tf.int32), tf.cast(batch["lengths"], tf.int32)
    columns = lengths[:, None] - number + tf.range(number)[None, :]
    # An extra column, because `items` may have none.
    padded_items = tf.pad(items, [[0, 0], [0, 1]])
    return tf.where(columns >= 0, tf.gather(padded_items, tf.maximum(columns, 0), batch_dims=1), 0)
