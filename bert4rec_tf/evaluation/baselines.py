"""Baselines to compare a model with: counting models, random scores, the built-in data's ceiling, and the paper."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from bert4rec_tf.config.data_names import remove_source
from bert4rec_tf.config.paper import read_paper
from bert4rec_tf.config.run_record import Run
from bert4rec_tf.config.transition_settings import ItemTransitionsSettings
from bert4rec_tf.data.sequences import LeaveOneOut, Sequences
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.data.sources.synthetic import MarkovCatalogue
from bert4rec_tf.evaluation.metrics import COUNT_BASELINES, POPULAR, compute_random_metrics
from bert4rec_tf.evaluation.ranking import Metrics, Ranker, RankingResult
from bert4rec_tf.evaluation.ranking_task import RankingTask
from bert4rec_tf.models import MODELS


def measure_baselines(
    run: Run,
    split: LeaveOneOut,
    task: RankingTask,
    num_candidates: Mapping[str, np.ndarray],
    training: Sequences,
    transitions: ItemTransitionsSettings,
) -> tuple[dict[str, Metrics], dict[str, np.ndarray]]:
    """Returns name -> metrics of COUNT_BASELINES, `random`, and `ceiling` and `paper` if these data have them.

    Also returns the ranks of `item_transitions`, by protocol. The ceiling is the ranking by the true transition
    probabilities of built-in data.

    `task`: the test items. `num_candidates`: as in `RankingResult`. `training`: what the measured model was trained on.
    """
    results: dict[str, RankingResult] = {}
    for name in COUNT_BASELINES:
        model = MODELS[name](training.num_items, transitions if name == "item_transitions" else None)
        model.adapt(training, transitions)
        results[name] = Ranker(model).rank_and_list(task)
    baselines = {name: result.compute_metrics() for name, result in results.items()}
    numbers = task.add_new_protocol(num_candidates)
    baselines["random"] = {protocol: compute_random_metrics(values) for protocol, values in numbers.items()}
    generator = datasets.DATASETS[run.dataset].generator if run.dataset in datasets.DATASETS else None
    if isinstance(generator, MarkovCatalogue) and generator.make_sequences().fingerprint == split.sequences.fingerprint:
        true_scores = tf.constant(generator.compute_scores(split.sequences, task.histories), tf.float32)
        ranker = Ranker(lambda batch, candidates: tf.gather(true_scores, batch["users"]))
        baselines["ceiling"] = ranker.measure(task)
    paper_metrics = _read_published(run, split)
    baselines |= {"paper": paper_metrics} if paper_metrics else {}
    return baselines, results["item_transitions"].ranks


def _read_published(run: Run, split: LeaveOneOut) -> Metrics | None:
    """Returns the paper's Table 2 if it has the model, the data have Table 1's size, and there are 100 negatives."""
    dataset = remove_source(run.dataset)
    table1 = read_paper()["table1"].get(dataset, {})
    sizes = (split.sequences.num_users, split.sequences.num_items, run.evaluation.num_negatives)
    if sizes != (table1.get("users"), table1.get("items"), 100):
        return None
    paper_metrics = read_paper()["table2"][dataset].get(run.model)
    return paper_metrics and {POPULAR: paper_metrics}
