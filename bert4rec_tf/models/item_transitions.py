"""Item transitions: recommends what came after the last items in other histories. Only counts; not in the paper."""

from typing import ClassVar

import keras
import numpy as np
import tensorflow as tf

from bert4rec_tf.config.model_settings import ItemTransitionsSettings
from bert4rec_tf.config.transition_settings import CompleteSettings
from bert4rec_tf.data import transitions
from bert4rec_tf.data.sequences import Sequences, make_splits
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models.raw_ids import check_catalogue
from bert4rec_tf.models.recommender import Recommender, last_items_in_order
from bert4rec_tf.nn.evidence import TransitionEvidence

MAX_PAIRS = 1 << 26
"""The most pairs of items that a model keeps: 512 MB. Of more, each item keeps only its strongest ones."""


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class ItemTransitions(Recommender):
    """Scores an item by the logarithms of how often it came after the items of the history, in all training histories.

    S(a | h) = sum over h of w_j log(1 + C(h_j, a) n / tau) + lambda log p(a), with n items and popularity p. The count
    C(b, a) weighs each time that a comes d places after b by the distance d, and each time that it comes d places
    before b by `backward` times that. w_j weighs the items of the history by their age, and sums to 1. An item without
    evidence has lambda log p alone (Petrov et al., RecSys 2026). After a history without any evidence, S = log p:
    lambda may be negative, and the rarest items would be first.

    A setting that is None is chosen on the validation items (`evaluation.evidence_search`); without a search it has its
    value of `ItemTransitionsSettings.resolve`.
    """

    settings_type: ClassVar = ItemTransitionsSettings
    max_history: int

    def make_variables(self) -> None:
        self.max_history = self.settings.max_history
        self.evidence = TransitionEvidence(self.num_items, self.max_history, name="evidence")

    def adapt(self, sequences: Sequences, transitions: ItemTransitionsSettings | None = None) -> None:
        check_catalogue(self, sequences)
        settings = (transitions or self.settings).resolve()
        count_evidence(self.evidence, sequences, settings)
        self.evidence.mix.assign([1.0, settings.popularity_weight, 1.0])
        super().adapt(sequences)

    def user_vectors(self, batch: Batch, training: bool = False) -> Tensor:
        """Returns `TransitionEvidence.encode` of the last `max_history` items."""
        return self.evidence.encode(*last_items_in_order(batch, self.max_history))

    def find_cold(self, lengths: Tensor, vectors: Tensor) -> Tensor:
        return ~self.evidence.has_pairs(vectors)

    def score_vectors(self, vectors: Tensor, candidates: Tensor | None = None) -> Tensor:
        log_shares = tf.convert_to_tensor(self.evidence.log_shares)
        popularity = log_shares[1:] if candidates is None else tf.gather(log_shares, candidates)
        return tf.where(self.evidence.has_pairs(vectors)[:, None], self.evidence.score(vectors, candidates), popularity)

    def similarities(self, items: Tensor) -> Tensor:
        """Returns the evidence of one item for all others, float32 [b, n]; -inf for items without any."""
        rows = tf.convert_to_tensor(items, tf.int32)[:, None]
        sums = self.evidence.sum_pairs(rows, tf.ones_like(rows, tf.float32))[:, 1:]
        return tf.where(sums > 0, sums, -float("inf"))


def count_evidence(
    evidence: TransitionEvidence,
    sequences: Sequences,
    settings: CompleteSettings,
    popularity_power: float = 0.0,
) -> None:
    """Counts the transitions of training histories and sets the evidence, by settings without a None.

    The counts of a pair are divided by (n p(a))^`popularity_power`, with n items and the popularity p of the second.
    """
    log_shares = transitions.compute_log_shares(sequences.count_items())
    factors = np.exp(-popularity_power * (log_shares + np.log(sequences.num_items)))
    weights = transitions.weigh_distances(settings.window, settings.distance_power, settings.distance_decay)
    size = sequences.num_items + 1
    num_neighbors = min(settings.num_neighbors or size, max(MAX_PAIRS // size, 1))
    order = transitions.order_items(log_shares)
    num_pairs = np.zeros(size, np.int64)
    parts: tuple[list[np.ndarray], list[np.ndarray]] = [], []
    for first_item, block in transitions.count_transitions(sequences, settings.window):
        counts = block.combine(weights, settings.backward)
        if popularity_power:
            counts.data *= factors[counts.indices]
        rows, *part = transitions.select_strongest_pairs(
            transitions.weigh_evidence(counts, settings.smoothing, sequences.num_items), num_neighbors, order
        )
        num_pairs += np.bincount(first_item + rows, minlength=size)
        for arrays, array in zip(parts, part):
            arrays.append(array)
    columns = []
    for arrays in parts:
        columns.append(np.concatenate(arrays))
        arrays.clear()  # before the next ones are joined, to save memory
    splits, ages = make_splits(num_pairs), transitions.weigh_ages(evidence.max_history, settings)
    evidence.assign(splits, columns[0], columns[1], log_shares, ages)
