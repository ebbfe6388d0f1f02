"""A run's optimizer."""

import math
from typing import Any

from bert4rec_tf.config.run_record import TrainingSettings
from bert4rec_tf.nn.optimizers import Adagrad, BertAdam, RowwiseAdagrad, WarmUpLinearDecay


def make_optimizer(settings: TrainingSettings, model: Any = None) -> BertAdam | Adagrad:
    """Returns a run's optimizer. `model`: rowwise_adagrad updates its tables by rows; other optimizers ignore it."""
    # A constant learning rate falls to 0 after infinitely many steps.
    steps = settings.steps if settings.schedule == "linear" else math.inf
    schedule = WarmUpLinearDecay(settings.learning_rate, steps, settings.warmup_steps)
    if settings.optimizer == "adagrad":
        return Adagrad(schedule, settings.momentum)
    adam = {
        "learning_rate": schedule,
        "decay": settings.weight_decay,
        "beta_1": settings.beta_1,
        "beta_2": settings.beta_2,
        "epsilon": settings.epsilon,
        "bias_correction": settings.bias_correction,
    }
    if settings.optimizer == "adam":
        return BertAdam(**adam)
    tables = [] if model is None else [variable.path for variable in model.list_row_tables()]
    return RowwiseAdagrad(**adam, tables=tables, row_scale=settings.row_learning_rate / settings.learning_rate)
