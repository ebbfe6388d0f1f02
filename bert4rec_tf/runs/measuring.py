"""Measures the model of a run on the test items: its ranks and `metrics.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from bert4rec_tf.config.run_record import SELECT
from bert4rec_tf.evaluation import metrics
from bert4rec_tf.evaluation.baselines import measure_baselines
from bert4rec_tf.evaluation.metrics import ANY, FULL, NDCG, POPULAR, find_served_protocol
from bert4rec_tf.evaluation.mix_search import MixSearch
from bert4rec_tf.evaluation.ranking import Ranker
from bert4rec_tf.foundation import files, npz
from bert4rec_tf.foundation.environment import describe_environment
from bert4rec_tf.models import Recommender
from bert4rec_tf.runs.folder import COUNTED, COUNTED_ANY, HISTORY_LENGTHS, TARGET_COUNTS
from bert4rec_tf.training import loop

if TYPE_CHECKING:
    from bert4rec_tf.runs.experiment import Experiment


def measure(experiment: Experiment, model: Recommender) -> dict[str, Any]:
    """Measures a model of a run on its test items. Writes the ranks and `metrics.json`, and returns the latter."""
    workdir, training = experiment.workdir, experiment.measured_training
    task, training_data = experiment.make_task("test", all_items=True), experiment.select_data(training)
    result = Ranker(model).rank_and_list(task, None if experiment.silent else "measuring on test")
    baselines, counting_ranks = measure_baselines(
        experiment.run, experiment.split, task, result.num_candidates, training_data, experiment.transitions
    )
    target_counts = training_data.count_items()[task.targets]
    arrays = {
        "users": task.users,
        **result.ranks,
        **{f"{protocol}_candidates": number for protocol, number in result.num_candidates.items()},
        **({"is_repeat": task.is_repeat} if task.is_repeat.any() else {}),
        COUNTED: counting_ranks[FULL],
        **({COUNTED_ANY: counting_ranks[ANY]} if ANY in counting_ranks else {}),
        TARGET_COUNTS: target_counts,
        HISTORY_LENGTHS: task.histories.lengths[task.users],
    }
    npz.write(workdir.ranks, arrays)
    has_fewer_candidates = result.num_candidates[POPULAR] < experiment.run.evaluation.num_negatives
    content = {
        **_describe_run(experiment),
        "users": len(task.users),
        "users_not_evaluated": experiment.split.num_not_evaluated,
        "users_with_fewer_candidates": int(has_fewer_candidates.sum()),
        "repeats": {**experiment.repeats, "test": float(task.is_repeat.mean())},
        "test": result.compute_metrics(),
        "measured": training,
        **baselines,
        "beyond_counting": _compare_with_counting(
            find_served_protocol(experiment.repeats), result.ranks, counting_ranks
        ),
    }
    if SELECT in experiment.trainings:
        selected_model = model if training == SELECT else experiment.load_trained_model(SELECT)
        content["validation"] = Ranker(selected_model).measure(experiment.make_task("validation", all_items=True))
        if selected_model.networks:
            content["networks"] = _compare_networks(experiment, selected_model)
    if experiment.sequences.features:
        cold_metrics = metrics.compute_cold_metrics(result.ranks[FULL], target_counts)
        content[metrics.COLD] = {"below": metrics.COLD_BELOW, **cold_metrics}
    files.write_json(workdir.metrics, content)
    return content


def _describe_run(experiment: Experiment) -> dict[str, Any]:
    """Returns what `metrics.json` says of a run, its data and its trainings."""
    workdir, config = experiment.workdir, experiment.workdir.read_config()
    states = {name: loop.read_state(workdir.path / name) for name in experiment.trainings}
    return {
        "run": experiment.run.to_dict(),
        "digest": experiment.run.digest,
        "data_fingerprint": experiment.sequences.fingerprint,
        "environment": config.environment,
        "evaluated_with": describe_environment(),
        "transitions": workdir.read_transitions(),
        **({} if config.initial is None else {"initial": config.initial}),
        **{
            name: {"steps": state.step, "seconds": state.seconds, "best_step": state.best_step}
            for name, state in states.items()
        },
    }


def _compare_with_counting(
    protocol: str, ranks: Mapping[str, np.ndarray], counting_ranks: Mapping[str, np.ndarray]
) -> dict[str, Any] | None:
    """Returns by how much NDCG@10 exceeds that of counting, with the `protocol` if it is not FULL.

    None for too few users. The ranks are by protocol.
    """
    if len(ranks[protocol]) < metrics.MIN_USERS:
        return None
    baseline, values = (metrics.compute_per_user(NDCG, part[protocol]) for part in (counting_ranks, ranks))
    difference = asdict(metrics.compute_difference(baseline, values))
    return difference if protocol == FULL else {"protocol": protocol, **difference}


def _compare_networks(experiment: Experiment, model: Recommender) -> dict[str, Any]:
    """Returns how networks were joined on the validation items: their shares, and NDCG@10 of both and of each."""
    search = MixSearch(model, experiment.make_selection_task(), experiment.transitions)
    joint, singles = search.compare_networks()
    first, second = model.networks
    share = model.get_network_share()
    return {"shares": {first: share, second: 1 - share}, "joined": joint, "alone": singles}
