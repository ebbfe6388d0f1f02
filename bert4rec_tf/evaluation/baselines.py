"""What a model's metrics stand beside: POP, random scores, the data's own generator, and the paper."""

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
    """Returns the metrics of every protocol's ranks."""
    return {protocol: metrics(found) for protocol, found in ranks.items()}


def measure_baselines(run: Run, split: LeaveOneOut, task: RankingTask) -> dict[str, Metrics]:
    """Measures `pop` and `random` on a task, and `ceiling` or `paper` where these very data have one."""
    found = {"pop": _pop(split, task), "random": _random(task)}
    generator = datasets.DATASETS[run.dataset].generator if run.dataset in datasets.DATASETS else None
    if isinstance(generator, MarkovCatalogue) and generator.sequences().fingerprint == split.sequences.fingerprint:
        found["ceiling"] = _ceiling(generator, split, task)
    published = _paper(run, split)
    return {**found, "paper": published} if published else found


def _pop(split: LeaveOneOut, task: RankingTask) -> Metrics:
    pop = Pop(split.sequences.num_items)
    pop.adapt(split.training(with_validation=True))
    return metrics_of(Ranker(pop.score, max_history=1).ranks(task))


def _random(task: RankingTask) -> Metrics:
    return {protocol: random_metrics(task.num_candidates(protocol)) for protocol in task.protocols}


def _ceiling(generator: MarkovCatalogue, split: LeaveOneOut, task: RankingTask) -> Metrics:
    """The metrics of ranking by the generator's own transition table."""
    table = tf.constant(generator.scores(split.sequences, task.histories))

    def score(batch, candidates):
        return tf.gather(table, batch["users"])

    return metrics_of(Ranker(score).ranks(task))


def _paper(run: Run, split: LeaveOneOut) -> Metrics | None:
    """Table 2's row where the data have Table 1's size, and the protocol is the paper's."""
    dataset = family(run.dataset)
    table1 = paper()["table1"].get(dataset, {})
    sizes = (split.sequences.num_users, split.sequences.num_items, run.evaluation.num_negatives)
    if sizes != (table1.get("users"), table1.get("items"), 100):
        return None
    return {POPULAR: paper()["table2"][dataset][run.model]}
