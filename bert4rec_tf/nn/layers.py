"""The Keras layers of BERT4Rec (section 3 of the paper), as the authors' program computes them.

Letters in the shapes below: batch b, length n, width d, heads h, table rows v. Arguments of several layers:

- `initializer_stddev`: standard deviation of the truncated normal initial weights
- `dropout`: a rate in [0, 1); it acts in calls with `training=True`
- `padding_mask`: [b, n], True for real items; None for the mask that Keras carries with the inputs, or no padding

A constructor raises ValueError for a rate outside [0, 1) or a size below 1. Every layer passes its dtype policy on to
its sublayers. Under mixed precision the matrix products and GELU run in the narrower type; softmax, dropout, residual
sums and layer norms run in the type of the variables.
"""

import operator
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf
from keras import ops

from bert4rec_tf.foundation.types import Shape, Tensor
from bert4rec_tf.foundation.warning import TrainingWarning, warn
from bert4rec_tf.nn.attention import attend, gelu
from bert4rec_tf.nn.dropout import check_rate, dropout_layer

LAYER_NORM_EPSILON = 1e-12
"""The original program's value. Keras' default of 1e-3 changes the results."""

PADDING_SCORE = -10_000.0
"""Added to the attention scores of padding, as in the original program."""


def truncated_normal(stddev: float) -> keras.initializers.Initializer:
    """Returns a new initializer, truncated at two standard deviations. Raises ValueError if `stddev` is below 0.

    Every weight needs a new one: an initializer that is used twice gives the same values twice.
    """
    if stddev < 0:
        raise ValueError(f"`initializer_stddev` must be at least 0. Received: initializer_stddev={stddev}")
    return keras.initializers.TruncatedNormal(stddev=stddev)


def layer_norm(name: str, dtype: keras.DTypePolicy) -> keras.layers.LayerNormalization:
    """Returns a layer norm with the original's epsilon. Keras computes it in float32 or wider, whatever the policy."""
    return keras.layers.LayerNormalization(epsilon=LAYER_NORM_EPSILON, dtype=dtype, name=name)


def build_dense(
    name: str, input_shape: Shape, units: int, stddev: float, dtype: keras.DTypePolicy
) -> keras.layers.Dense:
    """Returns a dense layer that has its weights already."""
    layer = keras.layers.Dense(units, kernel_initializer=truncated_normal(stddev), dtype=dtype, name=name)
    layer.build(input_shape)
    return layer


def choose_mask(inputs: Tensor, padding_mask: Tensor | None) -> Tensor | None:
    """Returns the mask that was given; else the one that Keras has put on the inputs (`mask_zero=True`), or None."""
    return getattr(inputs, "_keras_mask", None) if padding_mask is None else padding_mask


def mask_places(outputs: Tensor, inputs: Tensor, places: Tensor | None) -> Tensor:
    """Returns the outputs; those of `places` alone, int32 [b, m] (not None), get the inputs' mask at these places."""
    mask = getattr(inputs, "_keras_mask", None)
    if mask is not None and places is not None:
        outputs._keras_mask = ops.take_along_axis(mask, places, axis=1)
    return outputs


def mask_queries(outputs: Tensor, inputs: Tensor, queries: Tensor | None) -> Tensor:
    """Returns the outputs; those of queries (not None) get their mask in place of the inputs'."""
    masks = [getattr(tensor, "_keras_mask", None) for tensor in (inputs, queries)]
    if queries is not None and any(mask is not None for mask in masks):
        outputs._keras_mask = ops.ones_like(queries[..., 0], "bool") if masks[1] is None else masks[1]
    return outputs


def count_from_last(padding_mask: Tensor, max_length: int) -> Tensor:
    """Returns the positions of the columns of a right-padded batch, int32 [b, n]: the last real item's is N - 1.

    `max_length` is N. Padding has N - 1 too.
    """
    lengths = tf.math.count_nonzero(padding_mask, axis=1, keepdims=True, dtype=tf.int32)
    return tf.minimum(max_length - lengths + tf.range(tf.shape(padding_mask)[1]), max_length - 1)


def check_heads(num_heads: int, width: int) -> None:
    """Raises ValueError if the number of heads does not divide the width of the inputs."""
    if width % num_heads:
        raise ValueError(f"`num_heads` must divide the width of the inputs, {width}. Received: num_heads={num_heads}")


def check_size(name: str, size: int, minimum: int = 1) -> int:
    """Returns the size. Raises ValueError if it is no whole number, or below `minimum`."""
    try:
        number = operator.index(size)
    except TypeError:
        raise ValueError(f"`{name}` must be a whole number. Received: {name}={size!r}") from None
    if number < minimum:
        raise ValueError(f"`{name}` must be at least {minimum}. Received: {name}={size}")
    return number


class Layer(keras.layers.Layer):
    """A layer that passes the mask of its inputs on, and whose outputs have the shape of its inputs.

    `arguments` names those of the constructor. Each is an attribute of the same name, and part of the configuration.
    """

    arguments: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **{name: getattr(self, name) for name in self.arguments}}

    def get_build_config(self) -> dict[str, Any] | None:
        shapes, quantization = super().get_build_config(), describe_quantization(self)
        return {**(shapes or {}), "quantization": quantization} if quantization else shapes

    def build_from_config(self, config: dict[str, Any]) -> None:
        super().build_from_config({name: value for name, value in config.items() if name != "quantization"})
        quantize_again(self, config.get("quantization", []))


def describe_quantization(layer: keras.layers.Layer) -> list[tuple[str | None, Any]]:
    """Returns the mode of `quantize` and its configuration for each dense layer inside; [] if none is quantized."""
    layers = _find_dense_layers(layer)
    parts = [(part.quantization_mode, keras.saving.serialize_keras_object(part.quantization_config)) for part in layers]
    return parts if any(mode for mode, _ in parts) else []


def quantize_again(layer: keras.layers.Layer, quantization: Sequence[tuple[str | None, Any]]) -> None:
    """Quantizes the dense layers inside as `describe_quantization` says. Their weights are loaded afterwards."""
    for part, (mode, config) in zip(_find_dense_layers(layer), quantization):
        if mode is not None:
            part.quantize(mode, config=keras.saving.deserialize_keras_object(config))


def _find_dense_layers(layer: keras.layers.Layer) -> list[keras.layers.Dense]:
    return [part for part in layer._flatten_layers() if isinstance(part, keras.layers.Dense)]


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class PositionEmbedding(Layer):
    """Adds a learnable vector per position, h_i = v_i + p_i (section 3.4), to `inputs [b, n, d]`.

    Args:
        max_length: N, the number of positions.
        from_last: whether the last real item of each row has the last vector, the one before it the vector before
            that, and so on, instead of the first item the first. Padding is on the right; what is added to it has no
            meaning.

    Raises:
        ValueError: in a call, if n is known and above N; in a graph TensorFlow's InvalidArgumentError.
    """

    arguments = ("max_length", "initializer_stddev", "from_last")

    def __init__(
        self, max_length: int, initializer_stddev: float = 0.02, from_last: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.input_spec = keras.InputSpec(ndim=3)
        self.max_length = check_size("max_length", max_length)
        self.initializer_stddev = initializer_stddev
        self.from_last = from_last

    def build(self, input_shape: Shape) -> None:
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.max_length, input_shape[-1]),
            initializer=truncated_normal(self.initializer_stddev),
        )

    def call(self, inputs: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        length = inputs.shape[1]
        if length is not None and length > self.max_length:
            raise ValueError(f"`inputs` must have at most {self.max_length} positions. Received: {inputs.shape}")
        num_columns, padding_mask = ops.shape(inputs)[1], choose_mask(inputs, padding_mask)
        if self.from_last and padding_mask is not None:
            return inputs + tf.gather(self.embeddings, count_from_last(padding_mask, self.max_length))
        first = self.max_length - num_columns if self.from_last else 0
        return inputs + tf.slice(self.embeddings, [first, 0], [num_columns, -1])  # refuses too many columns


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class MultiHeadAttention(Layer):
    """Multi-head self-attention in both directions (equations 1 and 2).

    Queries, keys, values and the output each have a dense layer with a bias. Scores are divided by sqrt(d / h), and
    -10000 is added to the scores of padded keys. Dropout is applied to the probabilities.

    `inputs [b, n, d]` give the outputs [b, n, d]; with `return_attention_scores` also the probabilities before dropout,
    [b, h, n, n] (query, key), without a gradient. With `queries [b, m, d]`, only these ask, and the results have m in
    place of the first n. `num_heads` is h; building raises ValueError if it does not divide d.
    """

    arguments = ("num_heads", "dropout", "initializer_stddev")

    def __init__(self, num_heads: int, dropout: float = 0.0, initializer_stddev: float = 0.02, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.input_spec = keras.InputSpec(ndim=3)
        self.num_heads = check_size("num_heads", num_heads)
        self.dropout = check_rate("dropout", dropout)
        self.initializer_stddev = initializer_stddev
        self.dropout_layer = dropout_layer("dropout", dropout, self.dtype_policy)

    def build(self, input_shape: Shape) -> None:
        width = input_shape[-1]
        check_heads(self.num_heads, width)
        self.query, self.key, self.value, self.output_dense = (
            build_dense(name, input_shape, width, self.initializer_stddev, self.dtype_policy)
            for name in ("query", "key", "value", "output")
        )

    def call(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        queries: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        padding_mask = choose_mask(inputs, padding_mask)
        query_inputs = inputs if queries is None else queries
        query, key, value = self.query(query_inputs), self.key(inputs), self.value(inputs)
        penalty = None
        if padding_mask is not None:
            penalty = PADDING_SCORE * (1.0 - ops.cast(padding_mask, self.variable_dtype)[:, None, None, :])
        context, probabilities = attend(query, key, value, self.num_heads, penalty, self.dropout_layer, training)
        outputs = mask_queries(self.output_dense(context), inputs, queries)
        return (outputs, probabilities) if return_attention_scores else outputs

    def compute_output_spec(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        queries: Tensor | None = None,
    ) -> Any:
        (batch, length, width), num_read = inputs.shape, (inputs if queries is None else queries).shape[1]
        outputs = mask_queries(keras.KerasTensor((batch, num_read, width), self.compute_dtype), inputs, queries)
        scores = keras.KerasTensor((batch, self.num_heads, num_read, length), self.variable_dtype)
        return (outputs, scores) if return_attention_scores else outputs


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class FeedForward(Layer):
    """The position-wise feed-forward network, GELU(x W1 + b1) W2 + b2 (equation 3), of `inputs [..., d]`.

    `intermediate_dim` is the inner width, 4 d in the paper.
    """

    arguments = ("intermediate_dim", "initializer_stddev")

    def __init__(self, intermediate_dim: int, initializer_stddev: float = 0.02, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.intermediate_dim = check_size("intermediate_dim", intermediate_dim)
        self.initializer_stddev = initializer_stddev

    def build(self, input_shape: Shape) -> None:
        stddev, policy = self.initializer_stddev, self.dtype_policy
        self.inner = build_dense("inner", input_shape, self.intermediate_dim, stddev, policy)
        self.outer = build_dense("outer", (*input_shape[:-1], self.intermediate_dim), input_shape[-1], stddev, policy)

    def call(self, inputs: Tensor) -> Tensor:
        return self.outer(gelu(self.inner(inputs)))


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class Residual(Layer):
    """The residual connection around a sublayer: LN(x + Dropout(sublayer(x))) (section 3.3).

    It takes the sublayer's `inputs` and `outputs`, both [..., d]. Without `use_layer_norm` it gives
    x + Dropout(sublayer(x)), without `use_residual` LN(Dropout(sublayer(x))).
    """

    arguments = ("dropout", "use_layer_norm", "use_residual")

    def __init__(
        self, dropout: float = 0.0, use_layer_norm: bool = True, use_residual: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.dropout = check_rate("dropout", dropout)
        self.use_layer_norm = use_layer_norm
        self.use_residual = use_residual
        self.dropout_layer = dropout_layer("dropout", dropout, self.dtype_policy)
        self.norm = layer_norm("norm", self.dtype_policy) if use_layer_norm else None

    def build(self, inputs_shape: Shape, outputs_shape: Shape | None = None) -> None:
        if self.norm is not None:
            self.norm.build(inputs_shape)

    def call(self, inputs: Tensor, outputs: Tensor, training: bool | None = None) -> Tensor:
        result = self.dropout_layer(outputs, training=training)
        if self.use_residual:
            result = ops.cast(inputs, result.dtype) + result
        return ops.cast(result, self.compute_dtype) if self.norm is None else self.norm(result)

    def compute_output_shape(self, inputs_shape: Shape, outputs_shape: Shape | None = None) -> Shape:
        return inputs_shape


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class TransformerBlock(Layer):
    """One Transformer layer: attention and a feed-forward network, each followed by `Residual` (equations 4 to 6).

    `inputs [b, n, d]` give the new hidden states [b, n, d]; with `return_attention_scores` also the attention
    probabilities [b, h, n, n]. With `positions`, int32 [b, m], only the states at these are computed, and the results
    have m in place of the first n.

    Args:
        num_heads: h.
        intermediate_dim: inner width of the feed-forward network.
        dropout: rate after each sublayer.
        attention_dropout: rate of the attention probabilities.
        use_feed_forward, use_layer_norm, use_residual: the ablations of Table 5.
    """

    arguments = (
        "num_heads",
        "intermediate_dim",
        "dropout",
        "attention_dropout",
        "use_feed_forward",
        "use_layer_norm",
        "use_residual",
        "initializer_stddev",
    )

    def __init__(
        self,
        num_heads: int,
        intermediate_dim: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        use_feed_forward: bool = True,
        use_layer_norm: bool = True,
        use_residual: bool = True,
        initializer_stddev: float = 0.02,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.input_spec = keras.InputSpec(ndim=3)
        self.num_heads, self.intermediate_dim = num_heads, intermediate_dim
        self.dropout, self.attention_dropout = dropout, check_rate("attention_dropout", attention_dropout)
        self.use_feed_forward, self.use_layer_norm, self.use_residual = use_feed_forward, use_layer_norm, use_residual
        self.initializer_stddev = initializer_stddev
        policy, switches = self.dtype_policy, (dropout, use_layer_norm, use_residual)
        self.attention = MultiHeadAttention(
            num_heads, attention_dropout, initializer_stddev, dtype=policy, name="attention"
        )
        self.attention_residual = Residual(*switches, dtype=policy, name="attention_residual")
        if use_feed_forward:
            self.feed_forward = FeedForward(intermediate_dim, initializer_stddev, dtype=policy, name="feed_forward")
            self.feed_forward_residual = Residual(*switches, dtype=policy, name="feed_forward_residual")

    def build(self, input_shape: Shape) -> None:
        self.attention.build(input_shape)
        self.attention_residual.build(input_shape)
        if self.use_feed_forward:
            self.feed_forward.build(input_shape)
            self.feed_forward_residual.build(input_shape)

    def call(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        positions: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        padding_mask = choose_mask(inputs, padding_mask)
        queries = inputs if positions is None else tf.gather(inputs, positions, batch_dims=1)
        context, probabilities = self.attention(
            inputs, padding_mask, training=training, return_attention_scores=True, queries=queries
        )
        hidden = self.attention_residual(queries, context, training=training)
        if self.use_feed_forward:
            hidden = self.feed_forward_residual(hidden, self.feed_forward(hidden), training=training)
        hidden = mask_places(hidden, inputs, positions)
        return (hidden, probabilities) if return_attention_scores else hidden

    def compute_output_spec(
        self,
        inputs: Tensor,
        padding_mask: Tensor | None = None,
        training: bool | None = None,
        return_attention_scores: bool = False,
        positions: Tensor | None = None,
    ) -> Any:
        outputs, scores = self.attention.compute_output_spec(inputs, padding_mask, training, True, positions)
        outputs = mask_places(outputs, inputs, positions)
        return (outputs, scores) if return_attention_scores else outputs


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class MaskedItemHead(Layer):
    """The output layer: GELU(h W + b), layer norm, then the item table and a bias per row (equation 7).

    The layer norm is in the original program; equation 7 has none. `hidden [..., d]`, the states at masked positions,
    give logits [..., v].

    Args:
        num_rows: v.
        embedding: the layer of the inputs whose table the outputs share (tied weights), such as
            `keras.layers.Embedding`. Without it, every call takes a `table [v, d]`.
    """

    arguments = ("num_rows", "use_layer_norm", "initializer_stddev", "embedding")

    def __init__(
        self,
        num_rows: int,
        use_layer_norm: bool = True,
        initializer_stddev: float = 0.02,
        embedding: keras.layers.Embedding | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_rows = check_size("num_rows", num_rows)
        self.use_layer_norm = use_layer_norm
        self.initializer_stddev = initializer_stddev
        self.embedding = embedding
        self.norm = layer_norm("norm", self.dtype_policy) if use_layer_norm else None

    def build(self, hidden_shape: Shape, table_shape: Shape | None = None) -> None:
        self.dense = build_dense("dense", hidden_shape, hidden_shape[-1], self.initializer_stddev, self.dtype_policy)
        if self.norm is not None:
            self.norm.build(hidden_shape)
        if self.embedding is not None:
            if not self.embedding.built:
                self.embedding.build()
            rows = self.embedding.embeddings.shape[0]
            if rows != self.num_rows:
                raise ValueError(f"`num_rows` must be the rows of `embedding`, {rows}. Received: {self.num_rows}")
        self.bias = self.add_weight(name="bias", shape=(self.num_rows,), initializer="zeros", autocast=False)

    def transform(self, hidden: Tensor) -> Tensor:
        """Returns the vectors that are multiplied with the table, [..., d]."""
        states = gelu(self.dense(hidden))
        return states if self.norm is None else self.norm(states)

    def call(self, hidden: Tensor, table: Tensor | None = None) -> Tensor:
        if table is None:
            if self.embedding is None:
                raise ValueError("`table` must be given to a head without an `embedding`. Received: table=None")
            table = self.embedding.embeddings
            if self.embedding.quantization_mode is not None:  # the stored numbers need the layer's scales
                table = self.embedding(ops.arange(self.num_rows))
        states, table = (ops.cast(part, self.variable_dtype) for part in (self.transform(hidden), table))
        return ops.matmul(states, ops.transpose(table)) + self.bias

    def compute_output_shape(self, hidden_shape: Shape, table_shape: Shape | None = None) -> Shape:
        return (*hidden_shape[:-1], self.num_rows)

    def compute_output_spec(self, hidden: Tensor, table: Tensor | None = None) -> keras.KerasTensor:
        return keras.KerasTensor((*hidden.shape[:-1], self.num_rows), self.variable_dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "embedding": keras.saving.serialize_keras_object(self.embedding)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "MaskedItemHead":
        if config["embedding"] is not None and "shared_object_id" not in config["embedding"]:
            warn(
                "a MaskedItemHead from a configuration has an embedding of its own; only a .keras file keeps one that "
                "other layers use",
                TrainingWarning,
            )
        return cls(**{**config, "embedding": keras.saving.deserialize_keras_object(config["embedding"])})
