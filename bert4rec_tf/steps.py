"""The compiled training step: gradients, clipping, update."""

from collections.abc import Callable

import tensorflow as tf

from bert4rec_tf import optimizers
from bert4rec_tf.models.recommender import Recommender
from bert4rec_tf.types import Batch, Tensor


def make_step(
    model: Recommender, optimizer: optimizers.BertAdam, clip_norm: float
) -> Callable[[Batch], dict[str, Tensor]]:
    """Returns the compiled training step: batch -> loss, gradient norm (before clipping) and learning rate."""
    variables = model.trainable_variables

    @tf.function
    def step(batch: Batch) -> dict[str, Tensor]:
        rate = tf.convert_to_tensor(optimizer.learning_rate)
        with tf.GradientTape() as tape:
            loss = model.training_loss(batch)
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        gradients, norm = optimizers.clip([tf.convert_to_tensor(gradient) for gradient in gradients], clip_norm)
        optimizer.apply(gradients, variables)
        return {"loss": loss, "gradient_norm": norm, "learning_rate": rate}

    return step
