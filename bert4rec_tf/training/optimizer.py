"""A run's optimizer."""

import math
from typing import Any

from bert4rec_tf.config.run_record import TrainingSettings
from bert4rec_tf.nn.optimizers import Adagrad, BertAdam, RowwiseAdagrad, WarmUpLinearDecay


def count_decay_steps(settings: TrainingSettings) -> float:
    """Returns after how many steps the learning rate is 0: infinitely many for a constant one."""
    return settings.steps if settings.schedule == "linear" else math.inf


def make_schedule(settings: TrainingSettings) -> WarmUpLinearDecay:
    return WarmUpLinearDecay(settings.learning_rate, count_decay_steps(settings), settings.warmup_steps)


def make_optimizer(
    settings: TrainingSettings, model: Any = None, schedule: WarmUpLinearDecay | None = None
) -> BertAdam | Adagrad:
    """Returns a run's optimizer.

    Args:
        settings: the run's settings.
        model: rowwise_adagrad updates its tables by rows; other optimizers ignore it.
        schedule: of the learning rate; None for one by the settings.
    """
    schedule = schedule or make_schedule(settings)
    if settings.optimizer == "adagrad":
        return Adagrad(schedule, settings.momentum)
    adam: dict[str, Any] = {
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
