"""Measures an exported model on actions that it was not trained on (`FittedModel.evaluate`)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import tensorflow as tf

from bert4rec_tf.config.run_record import EvaluationSettings
from bert4rec_tf.data.id_types import match_types
from bert4rec_tf.data.sequences import Sequences, Vocabulary, make_splits
from bert4rec_tf.evaluation.candidates import SAMPLERS
from bert4rec_tf.evaluation.metrics import (
    ANY,
    DISTANCES,
    FULL,
    compute_distances_per_user,
    compute_per_user,
)
from bert4rec_tf.evaluation.ranking import Ranker
from bert4rec_tf.evaluation.ranking_task import RankingTask
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.types import Batch, Tensor
from bert4rec_tf.foundation.warning import DataWarning, UnknownIdWarning, warn
from bert4rec_tf.models.initial_vectors import make_cooccurrence_vectors
from bert4rec_tf.serving.client import SavedRecommender

DISTANCE_WIDTH = 64
"""The width of the co-occurrence vectors by which the distances of items are measured."""


def measure_actions(
    saved: SavedRecommender,
    histories: Sequences,
    test: Sequences,
    names: Sequence[str],
    per_user: bool = False,
    distances: bool = False,
) -> pd.DataFrame:
    """Returns how high a model ranks each action of `test`, given the user's whole known history.

    Args:
        saved: the model.
        histories: the histories that it was trained on.
        test: the actions to find. Those of unknown users and items are left out with a warning.
        names: of metrics (`evaluation.metrics`).
        per_user, distances: as for `FittedModel.evaluate`, which describes the table.

    Raises UserError if no action has a known user and item.
    """
    users, targets = _select_known(histories, match_types(histories, test))
    _warn_of_known_actions(saved, histories, users, targets)
    all_data = _append_targets(histories, users, targets)
    sizes = EvaluationSettings()
    num_negatives = min(sizes.num_negatives, histories.num_items)
    negatives = {name: draw(all_data, users, num_negatives, sizes.candidates_seed) for name, draw in SAMPLERS.items()}
    with_seen = not saved.card.get("exclude_seen", True)
    task = RankingTask(histories, users, targets, negatives, all_items=True, excluded=all_data, with_seen=with_seen)

    penalties = tf.constant(saved.read_penalties())

    def score(batch: Batch, candidates: Tensor | None) -> Tensor:
        """Scores as `Recommender.score` does, by the SavedModel, and lowers popular items as `recommend` does."""
        items = tf.constant(["", *saved.items])
        numbers = tf.range(1, len(saved.items) + 1)[None, :] if candidates is None else candidates
        owners = tf.gather(tf.constant(histories.users), batch["users"])
        scores = saved.scores(tf.gather(items, batch["items"]), owners, tf.gather(items, numbers))
        return scores - tf.gather(penalties, numbers)

    result = Ranker(score, saved.card.get("max_history")).rank_and_list(task, with_lists=distances)
    list_distances = {protocol: np.empty([len(users), 0]) for protocol in result.ranks}
    if distances:
        case_histories = [histories[user] for user in users.tolist()]
        vectors = make_cooccurrence_vectors(histories, DISTANCE_WIDTH)
        for protocol, lists in result.lists.items():
            list_distances[protocol] = compute_distances_per_user(lists, targets, case_histories, vectors)
    if not per_user:
        means = {name: values.mean(axis=0) for name, values in task.add_new_protocol(list_distances).items()}
        results = result.compute_metrics(names)
        return pd.DataFrame({name: {**row, **dict(zip(DISTANCES, means[name]))} for name, row in results.items()})
    protocol = ANY if with_seen else FULL
    ids = {"user": np.asarray(histories.users, object)[users].tolist(), "item": histories.vocabulary.decode(targets)}
    table = pd.DataFrame({role: saved.restore_ids(role, texts) for role, texts in ids.items()})
    ranks = result.ranks[protocol]
    metrics = {name: compute_per_user(name, ranks) for name in names}
    return table.assign(rank=ranks + 1, **metrics, **dict(zip(DISTANCES, list_distances[protocol].T)))


def _select_known(histories: Sequences, test: Sequences) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of the users and items of the test actions with both known, int [cases] each."""
    targets = histories.vocabulary.encode(test.vocabulary.items.tolist())[test.items - 1]
    users = np.repeat(pd.Index(histories.users).get_indexer(test.users), test.lengths)
    is_known = (users >= 0) & (targets > 0)
    if not is_known.any():
        raise UserError("`test` must have rows of known users and items. Received: none")
    if not is_known.all():
        warn(
            f"{(~is_known).sum():,} of {len(users):,} test rows have an unknown user or item and were left out",
            UnknownIdWarning,
        )
    return users[is_known], targets[is_known]


def _warn_of_known_actions(
    saved: SavedRecommender, histories: Sequences, users: np.ndarray, targets: np.ndarray
) -> None:
    """Warns if most test actions are items that their users already have."""
    num_repeated, sizes = np.count_nonzero(histories.have_items(users, targets)), saved.card.get("data", {})
    if 2 * num_repeated <= len(users):
        return
    is_held_out = sizes.get("training_actions", 0) < sizes.get("actions", 0)
    consequence = (
        "training held them out, but the histories end with them, and the metrics are too low; see `model.metrics`"
        if is_held_out
        else "the model was trained on them, and the metrics are too high"
    )
    warn(
        f"{num_repeated:,} of {len(users):,} test rows are items that the user already has in the known histories. If "
        f"they are the same actions, {consequence}",
        DataWarning,
    )


def _append_targets(histories: Sequences, users: np.ndarray, targets: np.ndarray) -> Sequences:
    """Returns the histories with each user's targets appended, so that they are not ranked against each other."""
    owners = np.concatenate([np.repeat(np.arange(histories.num_users), histories.lengths), users])
    items = np.concatenate([histories.items, targets])[np.argsort(owners, kind="stable")]
    splits = make_splits(np.bincount(owners, minlength=histories.num_users))
    counts = np.bincount(items, minlength=histories.num_items + 1)[1:]
    return Sequences(items, splits, histories.users, Vocabulary(histories.vocabulary.items, counts))
