"""A run's settings become its optimizer and its learning rate schedule."""

import math

from bert4rec_tf.config.run import TrainingSettings
from bert4rec_tf.nn.optimizers import Adagrad, BertAdam, WarmUpLinearDecay


def schedule_of(settings: TrainingSettings) -> WarmUpLinearDecay:
    """Returns the rate of each step; a constant one falls to 0 after endless steps."""
    steps = settings.steps if settings.schedule == "linear" else math.inf
    return WarmUpLinearDecay(settings.learning_rate, steps, settings.warmup_steps)


def optimizer_of(settings: TrainingSettings) -> BertAdam | Adagrad:
    """Returns the optimizer of a run."""
    if settings.optimizer == "adagrad":
        return Adagrad(schedule_of(settings), settings.momentum)
    return BertAdam(
        schedule_of(settings),
        decay=settings.weight_decay,
        beta_1=settings.beta_1,
        beta_2=settings.beta_2,
        epsilon=settings.epsilon,
        bias_correction=settings.bias_correction,
    )
