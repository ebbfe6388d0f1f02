"""Dropout that draws a quarter as many random bits as Keras' own."""

from typing import Any

import keras
import tensorflow as tf

from bert4rec_tf.foundation.graphs import tf_function
from bert4rec_tf.foundation.types import Shape, Tensor

BLOCK_BYTES = 256
"""A value is dropped if its random byte is below a threshold. A single threshold would round the rate to 1 / 256. So in
every block of 256 bytes, some have the next higher threshold, as many as the rate demands. Which ones is drawn too, so
all values have the same chance, exact to 1e-5."""

NOISE_LEVELS = 256 * BLOCK_BYTES
MAX_LEVELS = 255 * BLOCK_BYTES


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class Dropout(keras.layers.Layer):
    """Drops a fraction of the inputs in training, and scales up the rest.

    Args:
        rate: the fraction, in [0, 1) (else ValueError), rounded to 1 / 65536, and at most 255 / 256.
        seed: random seed; None to draw one from Keras' global generator.
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate = check_rate("rate", rate)
        self.seed = seed
        self.supports_masking = True
        if rate > 0:
            self.seed_generator = keras.random.SeedGenerator(seed)
        self.built = True  # it has no weights

    @property
    def factor(self) -> float:
        """The factor that scales up the kept inputs: 1 divided by the exact fraction that is kept."""
        return NOISE_LEVELS / (NOISE_LEVELS - self._count_dropped_levels())

    def _count_dropped_levels(self) -> int:
        return min(round(self.rate * NOISE_LEVELS), MAX_LEVELS)

    def draw_keep_mask(self, shape: Tensor, training: bool | None) -> Tensor | None:
        """Returns 1 where an input of a shape, int32 [r], is kept and 0 where it is dropped; None if none is dropped.

        It can be drawn while the inputs are computed. A caller who sums the kept ones may scale the sums by `factor`.
        """
        if not (training and self.rate):
            return None
        seed = tf.cast(self.seed_generator.next(), tf.int32)
        is_kept = _draw_bits(tf.reduce_prod(shape), seed, *divmod(self._count_dropped_levels(), BLOCK_BYTES))
        return tf.cast(tf.reshape(is_kept, shape), self.compute_dtype)

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        keep_mask = self.draw_keep_mask(tf.shape(inputs), training)
        return inputs if keep_mask is None else inputs * (keep_mask * self.factor)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}


def dropout_layer(name: str, rate: float, dtype: keras.DTypePolicy) -> Dropout:
    """Returns a dropout layer that computes in the variables' type, so that scaled values are rounded only once."""
    return Dropout(rate, dtype=dtype.variable_dtype, name=name)


def check_rate(name: str, rate: float) -> float:
    """Returns the rate. Raises ValueError if it is outside [0, 1)."""
    if not 0 <= rate < 1:
        raise ValueError(f"`{name}` must be in [0, 1). Received: {name}={rate}")
    return rate


# A graph of training draws for every layer and group of rows. Not inlined, this is traced and optimized only once.
@tf_function(experimental_attributes={"_noinline": True})
def _draw_bits(size: tf.Tensor, seed: tf.Tensor, threshold: int, num_raised: int) -> tf.Tensor:
    """Returns bool [size]. In every block, `num_raised` thresholds are `threshold` + 1, the others `threshold`."""
    words = (size + BLOCK_BYTES - 1) // BLOCK_BYTES * (BLOCK_BYTES // 4)
    words_and_shift = tf.random.stateless_uniform(
        [words + 1], seed, minval=None, maxval=None, dtype=tf.uint32, alg="philox"
    )
    numbers = tf.reshape(tf.bitcast(words_and_shift[:words], tf.uint8), [-1, BLOCK_BYTES])
    # 167 is odd, so the places are a permutation, and neighbours are far apart.
    places = tf.constant([167 * place % BLOCK_BYTES for place in range(BLOCK_BYTES)], tf.uint8)
    is_raised = places + tf.bitcast(words_and_shift[words], tf.uint8)[0] < tf.constant(num_raised, tf.uint8)
    thresholds = tf.constant(threshold, tf.uint8) + tf.cast(is_raised, tf.uint8)
    return tf.reshape(numbers >= thresholds, [-1])[:size]
