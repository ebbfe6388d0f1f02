"""Draws new Cloze masks in every epoch, inside tf.data, with stateless random operations seeded by the step."""

import numpy as np
import tensorflow as tf

from bert4rec_tf.config.run_record import MaskingSettings
from bert4rec_tf.data.examples.cloze import count_predictions
from bert4rec_tf.data.sequences import mask_token
from bert4rec_tf.foundation.graphs import no_autograph


def mask_dynamically(
    batches: tf.data.Dataset, masking: MaskingSettings, num_items: int, seed: int, start_step: int = 0
) -> tf.data.Dataset:
    """Masks batches of windows in the same way as `cloze.mask_rows`.

    In one of `mask_copies` + 1 epochs only the last item of a window is masked; in the others, random items. This is
    the original's proportion. With prefix examples, only the prefixes have just their last item masked.

    Args:
        batches: dictionaries of `user`, `window` (-1 for a prefix) and `epoch`, [b] each, and `items` [b, N].
        masking, num_items: as for `cloze.mask_rows`.
        seed, start_step: the masks depend on the seed and on the step; `start_step` is that of the first batch.

    Returns:
        Dictionaries of `user`, the masked `items`, and `mask_positions` and `mask_targets`, int32 [b, P].
    """

    max_length = batches.element_spec["items"].shape[1]
    predictions_by_length = count_predictions(np.arange(max_length + 1), masking).astype(np.int32)

    @no_autograph
    def mask(step: tf.Tensor, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        items = batch["items"]
        lengths = tf.math.count_nonzero(items, axis=1, dtype=tf.int32)
        if masking.prefix_copies:
            last_only = batch["window"] < 0
        else:
            due = (tf.cast(batch["window"], tf.int64) + batch["epoch"]) % (masking.mask_copies + 1)
            last_only = due == masking.mask_copies
        num_masked = tf.where(last_only, 1, tf.gather(predictions_by_length, lengths))
        keys = tf.random.stateless_uniform(tf.shape(items), seed=tf.stack([seed, 2 * step]))
        columns = tf.range(max_length)[None, :]
        keys = tf.where(columns < lengths[:, None], keys, 2.0)
        keys = tf.where(last_only[:, None] & (columns == lengths[:, None] - 1), -1.0, keys)
        predictions = min(masking.max_predictions, max_length)
        _, positions = tf.math.top_k(-keys, k=predictions)
        slots = tf.range(predictions)[None, :] < num_masked[:, None]
        positions = tf.sort(tf.where(slots, positions, max_length), axis=1)
        positions = tf.where(slots, positions, 0)
        targets = tf.where(slots, tf.gather(items, positions, batch_dims=1), 0)
        replacements = _make_replacements(targets, last_only, masking, num_items, tf.stack([seed, 2 * step + 1]))
        where = tf.where(slots)
        indices = tf.stack([where[:, 0], tf.cast(tf.gather_nd(positions, where), tf.int64)], axis=1)
        masked = tf.tensor_scatter_nd_update(items, indices, tf.gather_nd(replacements, where))
        return {"user": batch["user"], "items": masked, "mask_positions": positions, "mask_targets": targets}

    return batches.enumerate(start_step).map(mask, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _make_replacements(
    targets: tf.Tensor, last_only: tf.Tensor, masking: MaskingSettings, num_items: int, seed: tf.Tensor
) -> tf.Tensor:
    masks = tf.fill(tf.shape(targets), mask_token(num_items))
    if masking.mask_prob == 1:
        return masks
    draw = tf.random.stateless_uniform(tf.shape(targets), seed=seed)
    random_items = tf.random.stateless_uniform(
        tf.shape(targets), seed + tf.constant([1, 0], seed.dtype), 1, num_items + 1, tf.int32
    )
    other = tf.where(draw < masking.mask_prob + (1 - masking.mask_prob) / 2, targets, random_items)
    return tf.where((draw < masking.mask_prob) | last_only[:, None], masks, other)
