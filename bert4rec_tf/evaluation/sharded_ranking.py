"""Ranks targets with a model whose item table is sharded over the workers of a training."""

import numpy as np
import tensorflow as tf

from bert4rec_tf.evaluation.ranking import Ranker, refuse_nan
from bert4rec_tf.foundation.graphs import graph
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models.recommender import Recommender
from bert4rec_tf.models.sharded_table import ShardedTable, sum_of_all


class ShardedRanker(Ranker):
    """Ranks targets among candidates with a model whose item table is sharded. All workers rank the same task.

    Each encodes its part of the users and scores the candidates that it holds. So a rank is a sum of counts.

    Args:
        model: the model.
        table: its `sharded`.
        strategy: of the workers, with one device each.
    """

    def __init__(self, model: Recommender, table: ShardedTable, strategy: tf.distribute.Strategy) -> None:
        super().__init__(model.score, model.max_history)

        def on_replica(batch: Batch, candidates: Tensor) -> tuple[Tensor, Tensor]:
            scores = table.own_scores(_user_vectors(model, table, batch), candidates)
            (targets,) = sum_of_all([scores[:, :1]])
            is_own = table.is_own(candidates)
            beats = (scores >= targets) & is_own & (candidates > 0)
            is_nan = tf.math.count_nonzero(tf.math.is_nan(scores) & (candidates > 0), dtype=tf.int32)
            return tuple(sum_of_all([tf.cast(beats, tf.int32), is_nan]))

        rows, singles = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)
        batch = {"users": singles, "items": rows, "lengths": singles}
        self._beaten = graph(lambda *given: strategy.run(on_replica, args=given), input_signature=[batch, rows])

    def _reaching(self, batch: Batch, candidates: np.ndarray) -> np.ndarray:
        beats, is_nan = self._beaten(batch, candidates)
        refuse_nan(bool(is_nan))
        return beats.numpy()


def _user_vectors(model: Recommender, table: ShardedTable, batch: Batch) -> tf.Tensor:
    """Returns the vectors of all users of a batch, of whom every worker encodes some."""
    context, count = tf.distribute.get_replica_context(), tf.shape(batch["items"])[0]
    looked_up = table.look_up(model.rows_read(batch))
    number = context.replica_id_in_sync_group
    begin = number * count // context.num_replicas_in_sync
    end = (number + 1) * count // context.num_replicas_in_sync
    part = {name: values[begin:end] for name, values in batch.items()}
    vectors = model.user_vectors({**part, **looked_up})
    return sum_of_all([tf.pad(vectors, [[begin, count - end], [0, 0]])])[0]
