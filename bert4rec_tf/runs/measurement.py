"""Measures a trained model on the test items, and writes the ranks and `metrics.json`."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from bert4rec_tf.config.run_record import SELECT
from bert4rec_tf.evaluation import metrics
from bert4rec_tf.evaluation.baselines import measure_baselines
from bert4rec_tf.evaluation.ranking import Ranker
from bert4rec_tf.foundation import files, npz
from bert4rec_tf.models import Recommender
from bert4rec_tf.runs.environment import describe_environment
from bert4rec_tf.runs.phases import find_measured_phase, list_phases, select_training_data
from bert4rec_tf.training import loop

if TYPE_CHECKING:
    from bert4rec_tf.runs.pipeline import Experiment

COUNTED, LENGTHS, TARGET_COUNTS = "counted", "lengths", "target_counts"
"""Arrays of the ranks' file, int [users]: the target's rank among all items by item_transitions, the length of the
history, and how often training saw the target."""


def measure(experiment: "Experiment", model: Recommender) -> dict[str, Any]:
    """Evaluates a model on the test items. Writes the ranks and `metrics.json`, and returns the latter."""
    run, split, workdir = experiment.run, experiment.split, experiment.workdir
    task = experiment.make_task("test", all_items=True)
    training = select_training_data(split, find_measured_phase(run))
    ranked = Ranker(model).rank_and_list(task, None if experiment.silent else "measuring on test")
    selected = _load_selected(experiment, model)
    repeats = {**experiment.repeats, "test": float(task.is_repeat.mean())}
    arrays = {f"{protocol}_candidates": number for protocol, number in ranked.num_candidates.items()}
    if repeats["test"]:
        arrays["is_repeat"] = task.is_repeat
    fewer = ranked.num_candidates[metrics.POPULAR] < run.evaluation.num_negatives
    baselines, counted_ranks = measure_baselines(
        run, split, task, ranked.num_candidates, training, experiment.transitions
    )
    target_counts = training.count_items()[split.targets("test")]
    arrays |= {COUNTED: counted_ranks[metrics.FULL], TARGET_COUNTS: target_counts}
    arrays[LENGTHS] = task.histories.lengths[split.users]
    npz.write(workdir.ranks, {"users": split.users, **ranked.ranks, **arrays})
    content = {
        "run": run.to_dict(),
        "digest": run.digest,
        "data_fingerprint": experiment.sequences.fingerprint,
        "environment": workdir.read_config().environment,
        "evaluated_with": describe_environment(),
        "users": len(split.users),
        "users_not_evaluated": split.num_not_evaluated,
        "users_with_fewer_candidates": int(fewer.sum()),
        "repeats": repeats,
        "test": ranked.compute_metrics(),
        "measured": find_measured_phase(run),
        **baselines,
        "transitions": workdir.read_transitions(),
        "beyond_counting": _compare_with_counting(ranked.ranks[metrics.FULL], counted_ranks[metrics.FULL]),
    }
    if selected is not None:
        validation = experiment.make_task("validation", all_items=True)
        content["validation"] = Ranker(selected).measure(validation)
    for phase in list_phases(run):
        state = loop.read_state(workdir.path / phase)
        content[phase] = {"steps": state.step, "seconds": state.seconds, "best_step": state.best_step}
    if experiment.sequences.features:
        cold = metrics.compute_cold_metrics(ranked.ranks[metrics.FULL], target_counts)
        content[metrics.COLD] = {"below": metrics.COLD_BELOW, **cold}
    if experiment.initial is not None:
        content["initial"] = experiment.initial
    files.write_json(workdir.metrics, content)
    return content


def _compare_with_counting(ranks: np.ndarray, counted_ranks: np.ndarray) -> dict[str, float] | None:
    """Returns by how much NDCG@10 among all items exceeds that of counting; None for too few users."""
    if len(ranks) < metrics.MIN_USERS:
        return None
    counted, ours = (metrics.compute_per_user(metrics.NDCG, some_ranks) for some_ranks in (counted_ranks, ranks))
    return asdict(metrics.compute_difference(counted, ours))


def _load_selected(experiment: "Experiment", measured: Recommender) -> Recommender | None:
    """Returns the model of `select`; None without `select`. `measured`: the model of the measured training."""
    if SELECT not in list_phases(experiment.run):
        return None
    return measured if find_measured_phase(experiment.run) == SELECT else experiment.load_trained_model(SELECT)
