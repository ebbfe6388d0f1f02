"""BERT4Rec and SASRec side by side: their scores are added, beside one evidence. Not in the paper."""

from typing import Any, ClassVar

import keras
import tensorflow as tf

from bert4rec_tf.config.model_settings import AutoSettings
from bert4rec_tf.config.transition_settings import ItemTransitionsSettings
from bert4rec_tf.data.examples.joined import join_columns, split_columns
from bert4rec_tf.data.examples.kinds import MASKED
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models.bert4rec import BERT4Rec
from bert4rec_tf.models.evidence_recommender import EvidenceRecommender
from bert4rec_tf.models.feature_recommender import FeatureRecommender
from bert4rec_tf.models.sasrec import SASRec

NETWORKS: dict[str, type[FeatureRecommender]] = {"bert4rec": BERT4Rec, "sasrec": SASRec}
"""The networks by name, in the order of their vectors and losses."""


@keras.saving.register_keras_serializable(package="bert4rec_tf")
class Ensemble(EvidenceRecommender):
    """Adds the scores of BERT4Rec and SASRec: s x BERT4Rec + (1 - s) x SASRec + evidence.

    Both are trained at once, each by its own loss and examples, and share no weight. Two networks of different
    kinds make different mistakes, so their sum is often better than each. The share s, from 0 to 1, is chosen on the
    validation items together with the gain of the evidence (`evaluation.mix_search`).

    Attributes:
        network_share: s.
    """

    settings_type: ClassVar = AutoSettings
    title: ClassVar[str] = "BERT4Rec and SASRec"
    examples: ClassVar[str] = "joined"

    def make_variables(self) -> None:
        settings: AutoSettings = self.settings
        self.max_history = settings.max_length
        features = {name: values.sizes if self._lacks_features else values for name, values in self.features.items()}
        users = {} if self.num_users is None else {"num_users": self.num_users}
        options: dict[str, Any] = {**users, "features": features, "dtype": self.dtype_policy}
        self.networks = {
            name: kind(self.num_items, settings.select(kind.settings_type), name=name, **options)
            for name, kind in NETWORKS.items()
        }
        self.scores_are_logits = self.loss_entry.scores_are_logits
        share = 0.5 if settings.network_share is None else settings.network_share
        initializer = keras.initializers.Constant(share)
        self.network_share = self.add_weight((), initializer, trainable=False, autocast=False, name="network_share")
        self.add_evidence()

    @property
    def network_dim(self) -> int:
        return len(NETWORKS) * self.settings.hidden_dim

    def choose_batch_sizes(self, batch_size: int) -> dict[str, int]:
        """Returns the examples of each network in a step, for a run's `batch_size`."""
        size = self.settings.masked_batch_size or batch_size
        return {name: size if network.examples == MASKED else batch_size for name, network in self.networks.items()}

    def row_kind(self, variable: keras.Variable) -> str | None:
        kinds = (network.row_kind(variable) for network in self.networks.values())
        return next((kind for kind in kinds if kind is not None), None)

    def adapt(self, sequences: Sequences, transitions: ItemTransitionsSettings | None = None) -> None:
        super().adapt(sequences, transitions)
        for network in self.networks.values():
            network.adapt(sequences)

    def initialise(self, sequences: Sequences) -> None:
        for network in self.networks.values():
            network.initialise(sequences)

    def training_loss(self, batch: Batch, training: bool = True) -> Tensor:
        """Returns the loss of each network, float32 [2]. They share no weight, but the clipping.

        `batch`: the columns of each network's own batch, by names such as "sasrec/items" (`data.examples.joined`).
        """
        parts = split_columns(batch, self.networks)
        return tf.stack([network.training_loss(parts[name], training) for name, network in self.networks.items()])

    def loss_weight(self, batch: Batch) -> Tensor:
        """Returns the weight of each network's batch in its loss, float32 [2]."""
        parts = split_columns(batch, self.networks)
        return tf.stack([network.loss_weight(parts[name]) for name, network in self.networks.items()])

    def expect_next_items(self, batch: Batch, targets: Tensor) -> Batch:
        return join_columns(
            {name: network.expect_next_items(batch, targets) for name, network in self.networks.items()}
        )

    def network_vectors(self, batch: Batch, training: bool = False) -> Tensor:
        """Returns float32 [b, 2 d], the vectors of both networks."""
        return tf.concat([network.network_vectors(batch, training) for network in self.networks.values()], axis=1)

    def score_networks(self, vectors: Tensor, candidates: Tensor | None = None) -> list[Tensor]:
        parts = tf.split(vectors, len(NETWORKS), axis=1)
        return [network.network_scores(part, candidates) for network, part in zip(self.networks.values(), parts)]

    def join_networks(self, scores: list[Tensor], share: Tensor | None = None) -> Tensor:
        share = tf.convert_to_tensor(self.network_share if share is None else share)
        return share * scores[0] + (1 - share) * scores[1]

    def item_vectors(self) -> Tensor:
        """Returns the items' vectors of both networks, each times its share, float32 [n, 2 d]."""
        share = tf.convert_to_tensor(self.network_share)
        first, second = (tf.convert_to_tensor(network.item_vectors()) for network in self.networks.values())
        return tf.concat([share * first, (1 - share) * second], axis=1)

    def user_table(self) -> Tensor:
        """Returns the vectors of the users' features of both networks, float [m, 2 d]."""
        return tf.concat([network.user_table() for network in self.networks.values()], axis=1)

    def add_users(self, vectors: Tensor) -> None:
        """Does what `FeatureRecommender.add_users` does, for float [m, 2 d]."""
        self.needs_users, self.num_users = True, vectors.shape[0]
        for network, part in zip(self.networks.values(), tf.split(vectors, len(NETWORKS), axis=1)):
            network.add_users(part)
