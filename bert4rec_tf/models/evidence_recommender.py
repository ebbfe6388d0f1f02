"""Networks beside evidence: what counts of transitions add to the scores of one or more networks."""

from typing import Any, ClassVar

import keras
import tensorflow as tf

from bert4rec_tf.config.model_settings import TRANSITIONS
from bert4rec_tf.config.transition_settings import ItemTransitionsSettings
from bert4rec_tf.data.sequences import Sequences
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.models.item_transitions import count_evidence
from bert4rec_tf.models.raw_ids import check_catalogue
from bert4rec_tf.models.recommender import Recommender, last_items_in_order, multiply_rows
from bert4rec_tf.nn.evidence import TransitionEvidence
from bert4rec_tf.nn.layers import describe_quantization, quantize_again


class EvidenceRecommender(Recommender):
    """A model whose scores evidence can join (`AttentionSettings.evidence`).

    A model with one network defines `network_vectors(batch, training)` and `network_products()`, which return what
    `user_vectors` and `score_products` would return without evidence.

    Attributes:
        network_dim: the width of `network_vectors`.
        network_share: the weight of the first of two networks.
    """

    scores_unknown_users: ClassVar[bool] = True
    max_history: int
    network_share: keras.Variable

    @property
    def network_dim(self) -> int:
        return self.settings.hidden_dim

    def add_evidence(self) -> None:
        """Makes the evidence, if the settings ask for it. Its weights are made when it is counted."""
        if self.settings.evidence == TRANSITIONS:
            self.evidence = TransitionEvidence(self.num_items, self.max_history, dtype="float32", name="evidence")

    def adapt(self, sequences: Sequences, transitions: ItemTransitionsSettings | None = None) -> None:
        """Keeps the raw ids, and counts the evidence."""
        check_catalogue(self, sequences)
        if self.evidence is not None:
            transition_settings = (transitions or ItemTransitionsSettings()).resolve()
            count_evidence(self.evidence, sequences, transition_settings, self.settings.evidence_popularity_power)
        super().adapt(sequences)

    def set_mix(self, mix: Any, network_share: float = 1.0) -> None:
        """Sets how evidence joins (`TransitionEvidence.mix`), and the weight of the first of two networks."""
        self.evidence.mix.assign(mix)
        if self.networks:
            self.network_share.assign(network_share)

    def get_network_share(self) -> float:
        """Returns the weight of the first of two networks; of one, 1."""
        return float(self.network_share) if self.networks else 1.0

    def user_vectors(self, batch: Batch, training: bool = False) -> Tensor:
        """Returns float32 [b, d] of the network; with evidence [b, d + 2 w], what the evidence needs after that."""
        vectors = self.network_vectors(batch, training)
        if self.evidence is None:
            return vectors
        return tf.concat([vectors, self.evidence.encode(*last_items_in_order(batch, self.max_history))], axis=1)

    def score_networks(self, vectors: Tensor, candidates: Tensor | None = None) -> list[Tensor]:
        """Returns what `score_vectors` would return of each network alone, from `network_vectors`."""
        table, bias = self.network_products()
        return [multiply_rows(vectors, table, bias, candidates, self.num_items)]

    def join_networks(self, scores: list[Tensor], share: Tensor | None = None) -> Tensor:
        """Returns the scores of all networks together, from those of each.

        `share`: the weight of the first of two; None for the model's own.
        """
        return scores[0]

    def network_scores(self, vectors: Tensor, candidates: Tensor | None = None) -> Tensor:
        """Returns what `score_vectors` would return without evidence, from `network_vectors`."""
        return self.join_networks(self.score_networks(vectors, candidates))

    def score_vectors(self, vectors: Tensor, candidates: Tensor | None = None) -> Tensor:
        network_vectors, histories = vectors[:, : self.network_dim], vectors[:, self.network_dim :]
        scores = self.network_scores(network_vectors, candidates)
        if self.evidence is None:
            return scores
        return (scores + self.evidence.score(histories, candidates)) * tf.convert_to_tensor(self.evidence.mix)[2]

    def score_products(self) -> tuple[Tensor, Tensor | None] | None:
        return self.network_products() if self.evidence is None else None

    def item_vectors(self) -> Tensor:
        return self.network_products()[0][1 : self.num_items + 1]

    def quantize(self, mode: Any = None, config: Any = None, **options: Any) -> None:
        """Quantizes the dense layers, to serve. The tables, norms and positions stay as they are."""
        options = {"filters": lambda layer: isinstance(layer, keras.layers.Dense), **options, "type_check": False}
        keras.Model.quantize(self, mode, config=config, **options)

    def get_config(self) -> dict[str, Any]:
        """Returns `Recommender.get_config`, and the `quantization` of the dense layers, if any."""
        quantization = describe_quantization(self)
        return {**super().get_config(), **({"quantization": quantization} if quantization else {})}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "EvidenceRecommender":
        model = cls(**{name: value for name, value in config.items() if name != "quantization"})
        quantize_again(model, config.get("quantization", []))
        return model
