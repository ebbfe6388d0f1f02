"""BERT4Rec: a bidirectional Transformer trained by the Cloze task (Sun et al., CIKM 2019)."""

from typing import Any, ClassVar

import keras
import tensorflow as tf
from keras import ops

from bert4rec_tf.config.model_settings import BERT4RecSettings
from bert4rec_tf.data.examples.kinds import MASKED
from bert4rec_tf.data.sequences import Sequences, mask_token
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models.feature_recommender import FeatureRecommender
from bert4rec_tf.models.recommender import last_items_in_order
from bert4rec_tf.models.rows import FROM_FIRST, FROM_LAST, ITEMS
from bert4rec_tf.nn import layers, layouts

LENGTH_GROUPS = (1 / 4, 1 / 2, 3 / 4, 7 / 8)
"""Where a batch sorted by length is cut into groups (`layouts.split_rows`)."""

LOSS_EPSILON = 1e-5
"""Added to the number of masked positions that the loss is divided by, as in the original."""

PASSING_SHARE = 0.25
"""Share of the identity that `initial_layers=identity` adds before the softmax. GELU is almost linear there."""


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class BERT4Rec(FeatureRecommender):
    """The model of section 3, as the authors' program computes it.

    Rows of the item table: 0 is padding, 1 .. n are items, n + 1 is the mask token. Then follow `num_extra_rows`, which
    only an imported checkpoint of the authors needs. All rows take part in the softmax, as in the original.

    Args:
        num_items: n.
        settings: the architecture; or give single fields of it by name (`Recommender`).
        num_extra_rows: rows after the mask token's.
        **options: as for `Recommender`. With `dtype="mixed_bfloat16"` the model computes in bfloat16, keeps float32
            weights, and gives float32 scores and losses.

    Raises:
        ValueError: for a size that is too small, or a setting out of its range.

    Examples:
        >>> model = BERT4Rec(num_items=1000, max_length=50)
        >>> model.score({"users": [0], "items": [[5, 2, 9]], "lengths": [3]})  # [1, 1000]
    """

    settings_type: ClassVar = BERT4RecSettings
    examples: ClassVar[str] = MASKED
    positions: Any

    def __init__(
        self, num_items: int, settings: BERT4RecSettings | None = None, *, num_extra_rows: int = 0, **options: Any
    ) -> None:
        self.num_extra_rows = layers.check_size("num_extra_rows", num_extra_rows, minimum=0)
        super().__init__(num_items, settings, **options)

    def make_variables(self) -> None:
        settings: BERT4RecSettings = self.settings
        self.scores_are_logits = self.loss_entry.scores_are_logits
        self.max_length = settings.max_length
        self.max_history = self.max_length - 1
        self.mask_token = mask_token(self.num_items)
        self.num_rows = self.num_items + 2 + self.num_extra_rows
        self._make_embedding(settings)
        arguments = {name: getattr(settings, name) for name in layers.TransformerBlock.arguments}
        self.blocks = [
            layers.TransformerBlock(**arguments, dtype=self.dtype_policy, name=f"block_{number}")
            for number in range(settings.num_layers)
        ]
        for block in self.blocks:
            block.build((None, None, settings.hidden_dim))
        self.head = layers.MaskedItemHead(
            self.num_rows, settings.use_layer_norm, settings.initializer_stddev, dtype=self.dtype_policy, name="head"
        )
        self.head.build((None, settings.hidden_dim))
        self.mark_rows(self.head.bias, ITEMS)
        # The first initializer is not used, so that the others draw the same weights as in older versions.
        _, *initializers = (layers.truncated_normal(settings.initializer_stddev) for _ in range(3))
        self.add_feature_vectors(settings.hidden_dim, *initializers)
        self.add_evidence()

    def initialise(self, sequences: Sequences) -> None:
        """Sets the initial item vectors; with `initial_layers=identity`, also lets them pass through the layers.

        The identity is added to the random weights of the value and output layers of every attention, and PASSING_SHARE
        of it to the layer before the softmax. So before training, the masked position holds about the mean of the
        history's vectors, and the items nearest to it rank first. With random weights alone, almost nothing of the
        history reaches the masked position. The paper does not have this.
        """
        super().initialise(sequences)
        if self.settings.initial_layers == "identity":
            shares = [(self.head.dense, PASSING_SHARE)]
            for block in self.blocks:
                shares += [(block.attention.value, 1.0), (block.attention.output_dense, 1.0)]
            for layer, share in shares:
                layer.kernel.assign_add(share * ops.eye(self.settings.hidden_dim, dtype=layer.kernel.dtype))

    def _make_embedding(self, settings: BERT4RecSettings) -> None:
        width, stddev = settings.hidden_dim, settings.initializer_stddev
        initializer = layers.truncated_normal(stddev)
        self.item_embeddings = self.add_items("item_embeddings", self.num_rows, width, initializer)
        self.token_type = self.positions = self.embedding_norm = None
        if settings.use_token_type:
            self.token_type = self.add_weight(
                name="token_type", shape=(width,), initializer=layers.truncated_normal(stddev), autocast=False
            )
        if settings.use_positions:
            self.positions = layers.PositionEmbedding(
                self.max_length, stddev, settings.positions_from_last, dtype=self.dtype_policy, name="positions"
            )
            self.positions.build((None, None, width))
            self.mark_rows(self.positions.embeddings, FROM_LAST if settings.positions_from_last else FROM_FIRST)
        if settings.use_layer_norm:
            self.embedding_norm = layers.layer_norm("embedding_norm", self.dtype_policy)
            self.embedding_norm.build((None, None, width))
        self.embedding_dropout = layers.dropout_layer("embedding_dropout", settings.dropout, self.dtype_policy)

    def embed(
        self, items: Tensor, training: bool = False, users: Tensor | None = None, table: Tensor | None = None
    ) -> Tensor:
        """Returns h^0, [b, n, d]: the item, user, token type and position vectors, with layer norm and dropout."""
        hidden = tf.gather(self.item_table() if table is None else table, items)
        if self.needs_users and users is not None:
            hidden = hidden + self.embed_users(users)[:, None]
        if self.token_type is not None:
            hidden = hidden + self.token_type
        hidden = ops.cast(hidden, self.compute_dtype)
        if self.positions is not None:
            hidden = self.positions(hidden, padding_mask=ops.not_equal(items, 0))
        if self.embedding_norm is not None:
            hidden = self.embedding_norm(hidden)
        return ops.cast(self.embedding_dropout(hidden, training=training), self.compute_dtype)

    def encode(
        self,
        items: Tensor,
        training: bool = False,
        return_attention: bool = False,
        users: Tensor | None = None,
        table: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        """Runs the Transformer over rows of items. With `training`, dropout acts.

        Args:
            items: int32 [b, n], n <= N; 0 is padding, n + 1 the mask token.
            users: int32 [b], if the model reads users; None for unknown users.
            table: `item_table()`, if already computed.
            positions: int32 [b, m], where H^L is read; the last block computes nothing else. None for everywhere.

        Returns:
            H^L, [b, n, d], or [b, m, d] with `positions`; with `return_attention` also the probabilities [b, h, n, n]
            (query, key) of each block.
        """
        padding_mask = ops.not_equal(items, 0)
        hidden = self.embed(items, training, users, table)
        attention = []
        for number, block in enumerate(self.blocks, start=1):
            queries = positions if number == len(self.blocks) else None
            hidden, probabilities = block(
                hidden, padding_mask=padding_mask, training=training, positions=queries, return_attention_scores=True
            )
            attention.append(probabilities)
        return (hidden, attention) if return_attention else hidden

    def training_loss(self, batch: Batch, training: bool = True) -> Tensor:
        """Returns the Cloze loss: equation 8, averaged over the batch's masked positions as in the original.

        Only the real masked positions reach the output layer.

        Args:
            batch: masked `items [b, n]`, and `mask_positions` and `mask_targets` [b, p], whose unused slots have
                target 0; `users [b]` if the model reads users; `draw [b, 2]` for a loss over a SAMPLE.
        """
        table = self.training_table()
        groups = layouts.split_rows(batch, LENGTH_GROUPS, self.settings.hidden_dim)
        columns = [self._encode_masked(group, table, training) for group in groups]
        targets, states = (tf.concat(parts, axis=0) for parts in zip(*columns))
        weights = tf.cast(targets > 0, self.variable_dtype) / tf.cast(self.loss_weight(batch), self.variable_dtype)
        bias = self.head.bias.value
        if len(self.unseen):
            bias = bias + self.make_unseen_penalty(self.num_rows)
        return self.apply_loss_to_states(self.head.transform(states), table, bias, targets, weights, batch)

    def _encode_masked(self, batch: Batch, table: Tensor, training: bool) -> list[Tensor]:
        """Returns the targets [m] at a group's masked positions, and the hidden states there [m, d]."""
        positions, targets = layouts.cut_slots(batch["mask_positions"], batch["mask_targets"])
        hidden = self.encode(batch["items"], training, users=batch.get("users"), table=table, positions=positions)
        return layouts.flatten_targets(targets, hidden)

    def loss_weight(self, batch: Batch) -> Tensor:
        """Returns the number of real masked positions plus the original's epsilon, float32 []."""
        return tf.reduce_sum(tf.cast(batch["mask_targets"] > 0, tf.float32)) + LOSS_EPSILON

    def expect_next_items(self, batch: Batch, targets: Tensor) -> Batch:
        items, places = self.append_mask(batch)
        columns = self._start_next_items(batch, targets)
        return {**columns, "items": items, "mask_positions": places[:, None], "mask_targets": targets[:, None]}

    def append_mask(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns the test input (section 3.6): the last N - 1 items, then the mask token.

        It is int32 [b, n + 1] with n + 1 <= N. Also returns the positions of the mask tokens, int32 [b].
        """
        history, lengths = last_items_in_order(batch, self.max_history)
        history = tf.pad(history, [[0, 0], [0, 1]])
        return tf.where(tf.range(tf.shape(history)[1])[None, :] == lengths[:, None], self.mask_token, history), lengths

    def network_vectors(self, batch: Batch, training: bool = False) -> Tensor:
        """Returns float32 [b, d]: the transformed hidden state of the mask token after each history."""
        items, position = self.append_mask(batch)
        hidden: Tensor = self.encode(items, training, users=batch.get("users"), positions=position[:, None])
        state = self.head.transform(hidden[:, 0])
        return tf.cast(state, self.variable_dtype)

    def network_products(self) -> tuple[Tensor, Tensor | None]:
        return self.item_table(), self.head.bias

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_extra_rows": self.num_extra_rows}
