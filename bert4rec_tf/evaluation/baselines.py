"""Baselines to compare a model with: POP, random scores, the ceiling of the built-in data, and the paper's numbers."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from bert4rec_tf.config.data_names import family
from bert4rec_tf.config.paper import paper
from bert4rec_tf.config.run import Run
from bert4rec_tf.data.sequences import LeaveOneOut
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.data.sources.synthetic import MarkovCatalogue
from bert4rec_tf.evaluation.metrics import POPULAR, metrics, random_metrics
from bert4rec_tf.evaluation.ranking import Ranker, RankingTask
from bert4rec_tf.models.pop import Pop

Metrics = dict[str, dict[str, float]]
"""Protocol -> metric -> mean over the users."""


def metrics_of(ranks: Mapping[str, np.ndarray]) -> Metrics:
    """Returns the metrics of every protocol."""
    return {protocol: metrics(values) for protocol, values in ranks.items()}


def measure_baselines(run: Run, split: LeaveOneOut, task: RankingTask) -> dict[str, Metrics]:
    """Returns the metrics of `pop` and `random`; and of `ceiling` or `paper` if these data have one."""
    baselines = {"pop": _pop(split, task), "random": _random(task)}
    generator = datasets.DATASETS[run.dataset].generator if run.dataset in datasets.DATASETS else None
    if isinstance(generator, MarkovCatalogue) and generator.sequences().fingerprint == split.sequences.fingerprint:
        baselines["ceiling"] = _ceiling(generator, split, task)
    published = _paper(run, split)
    return {**baselines, "paper": published} if published else baselines


def _pop(split: LeaveOneOut, task: RankingTask) -> Metrics:
    pop = Pop(split.sequences.num_items)
    pop.adapt(split.training(with_validation=True))
    return metrics_of(Ranker(pop.score, max_history=1).ranks(task))


def _random(task: RankingTask) -> Metrics:
    return {protocol: random_metrics(task.num_candidates(protocol)) for protocol in task.protocols}


def _ceiling(generator: MarkovCatalogue, split: LeaveOneOut, task: RankingTask) -> Metrics:
    """The metrics of ranking by the true transition probabilities of the generator."""
    table = tf.constant(generator.scores(split.sequences, task.histories))

    def score(batch, candidates):
        return tf.gather(table, batch["users"])

    return metrics_of(Ranker(score).ranks(task))


def _paper(run: Run, split: LeaveOneOut) -> Metrics | None:
    """The paper's Table 2, if the data have the size in Table 1 and there are 100 negatives; else None."""
    dataset = family(run.dataset)
    table1 = paper()["table1"].get(dataset, {})
    sizes = (split.sequences.num_users, split.sequences.num_items, run.evaluation.num_negatives)
    if sizes != (table1.get("users"), table1.get("items"), 100):
        return None
    return {POPULAR: paper()["table2"][dataset][run.model]}
