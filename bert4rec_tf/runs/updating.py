"""Takes new actions into an exported model without training: into its histories, its counts and its tables."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from scipy import sparse

from bert4rec_tf.config.model_settings import ITEM_FEATURES, NO
from bert4rec_tf.config.run_record import Run
from bert4rec_tf.config.transition_settings import ItemTransitionsSettings
from bert4rec_tf.data.id_types import drop_wrong_types
from bert4rec_tf.data.reading.feature_files import with_features
from bert4rec_tf.data.reading.overlaps import join_actions
from bert4rec_tf.data.sequences import Sequences, Vocabulary
from bert4rec_tf.export import saved_model
from bert4rec_tf.export.histories import read_times
from bert4rec_tf.export.layout import TITLES, make_histories_command
from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.warning import DataWarning, warn
from bert4rec_tf.models import Recommender
from bert4rec_tf.models import rows as kinds
from bert4rec_tf.models.rows import refuse_unmarked, select_transferable
from bert4rec_tf.runs.folder import refuse_unknown_class
from bert4rec_tf.runs.trainings import make_model
from bert4rec_tf.serving.client import SavedRecommender
from bert4rec_tf.serving.rules import join_attributes, read_attributes

CARRIED = ("run", "digest", "trained_with", "metrics", "transitions")
"""The entries of a model card that an update keeps."""


def read_all_histories(saved: SavedRecommender) -> Sequences:
    """Returns the histories of an export, with times and columns. Raises UserError if it has none."""
    histories = saved.require_histories()
    vocabulary = Vocabulary(np.array(list(saved.items), object), histories.vocabulary.counts)
    return replace(histories, vocabulary=vocabulary, columns=saved.columns, times=read_times(saved.local_folder))


def find_cut(saved: SavedRecommender) -> str | None:
    """Returns a line that says how many actions an export holds, if these are not all; else None."""
    num_held, total = saved.require_histories().num_actions, saved.card.get("data", {}).get("actions", 0)
    return f"{saved.folder}: holds {num_held:,} of the {total:,} actions" if num_held < total else None


def join_more(saved: SavedRecommender, new_data: Sequences) -> Sequences:
    """Returns the known and the new actions, and warns of new ones that are known.

    Raises UserError if there are no new ones, the export is not of a run or does not hold all known actions, or as
    `join_actions`.
    """
    if "run" not in saved.card:
        raise UserError(f"{saved.folder}: was not exported from a run, so it cannot be updated")
    refuse_unknown_class(saved.folder, saved.card["run"]["model"])
    if not new_data.num_actions:
        raise UserError("the new data must have rows. Received: none")
    if cut := find_cut(saved):
        raise UserError(f"{cut}; an update needs all: {make_histories_command(saved.folder)}")
    data, num_repeats = join_actions(read_all_histories(saved), new_data)
    if num_repeats:
        warn(f"{num_repeats:,} new rows repeat user, item and time of a known one, which count once", DataWarning)
    return data


def update_export(
    saved: SavedRecommender,
    data: Sequences,
    folder: Path,
    item_features: Any = None,
    new_items: bool = False,
    titles: str | None = None,
) -> str:
    """Exports a model again that has also counted new actions. Nothing is trained. Returns how much was added, a line.

    What is counted is counted again in all actions, as a new training would. A new item starts at the mean of the
    vectors of items that its users had or that share its feature values, a new user at that of users who share items.

    Args:
        saved: the export. It may be in `folder`, which then shows the old model or the whole new one, at any time.
        data: the known and the new actions (`join_more`).
        folder: where to write (`saved_model.export`).
        item_features: features of the items, old and new, as for `fit`.
        new_items: whether items that occur only in `item_features` are recommended too.
        titles: the text of a file of titles (`serving.titles`), in place of the export's.

    Raises UserError for features that do not fit, or an export without its settings of counting.
    """
    card, histories = saved.card, saved.require_histories()
    if item_features is not None:
        data = with_features(data, item_features=item_features, new_items=new_items, silent=True)
    model = _resize(saved, data)
    data = replace(data, features={})
    content = {name: card[name] for name in CARRIED if name in card}
    sizes = {"users": data.num_users, "items": data.num_items, "actions": data.num_actions}
    fingerprint, columns = data.fingerprint, drop_wrong_types(data)
    content["data"] = {**card["data"], **sizes, "training_actions": data.num_actions, "fingerprint": fingerprint}
    if titles is None and (path := saved.local_folder / TITLES).exists():
        titles = path.read_text(encoding="utf-8")
    attributes = join_attributes(saved.attributes, read_attributes(item_features, columns))
    options = ExportOptions(card["k"], card["popularity_correction"], data, card["exclude_seen"], titles, attributes)
    content |= {"columns": columns} if columns else {}
    saved_model.export(model, data.vocabulary, folder, options, data.users.tolist(), card=content)
    num_items, num_users = data.num_items - len(saved.items), data.num_users - histories.num_users
    num_actions = data.num_actions - histories.num_actions
    return f"{num_actions:,} new actions, {num_items:,} new items, {num_users:,} new users"


def _resize(saved: SavedRecommender, data: Sequences) -> Recommender:
    """Returns the model of an export for the items and users of `data`, with all that is counted counted in these."""
    arrays, run = saved.read_weights(), Run.from_dict(saved.card["run"])
    old_model = _make_model(run, len(saved.items), len(saved.users))
    if old_model.evidence is not None:
        old_model.evidence.build(next(array.shape for name, array in arrays if name.endswith("evidence/neighbors")))
    model = _make_model(run, data.num_items, data.num_users if saved.needs_users else 0)
    for weight, (_, array) in zip(old_model.weights, arrays, strict=True):
        weight.assign(array)
    names = {kinds.ITEMS: (list(saved.items), data.vocabulary.items), kinds.USERS: (list(saved.users), data.users)}
    links = _link_items(data)
    for weight, old_weight in zip(select_transferable(model), select_transferable(old_model), strict=True):
        kind, value = model.row_kind(weight), np.asarray(old_weight)
        refuse_unmarked(weight, value, kind)
        if kind in names:
            first = int(kind == kinds.ITEMS)  # the row of padding
            end = first + len(names[kind][0])
            rows = _move_rows(value[first:end], *names[kind], links if first else links.T.tocsr()[: data.num_users])
            value = np.concatenate([value[:first], rows, value[end:]])
        weight.assign(value)
    transitions = saved.card.get("transitions")
    if transitions is None and model.evidence is not None:
        raise UserError(f"{saved.folder}: does not say how transitions are counted; export it again to update it")
    model.adapt(data, ItemTransitionsSettings(**(transitions or {})))
    if model.evidence is not None and model.examples is not None:
        model.evidence.mix.assign(old_model.evidence.mix)  # how counts and the network are mixed was trained
    return model


def _make_model(run: Run, num_items: int, num_users: int) -> Recommender:
    """Returns a run's model as its export has it: features are already part of its tables."""
    model = make_model(run.change(use_item_features=NO, use_user_features=False), num_items, num_users)
    if num_users and not model.needs_users:
        model.add_users(tf.zeros([num_users, model.network_dim]))
    return model


def _link_items(data: Sequences) -> sparse.csr_matrix:
    """Returns which items [n] have which users, and which feature values after these: zeros and ones."""
    users = np.repeat(np.arange(data.num_users), data.lengths)
    shape = (data.num_items, data.num_users)
    parts = [sparse.csr_matrix((np.ones(len(users)), (data.items - 1, users)), shape)]
    if ITEM_FEATURES in data.features:
        features = data.features[ITEM_FEATURES]
        cells = (np.ones(len(features.values)), features.values, features.splits)
        parts.append(sparse.csr_matrix(cells, (data.num_items, len(features.names))))
    links = sparse.hstack(parts, "csr")
    links.data[:] = 1
    return links


def _move_rows(rows: np.ndarray, old_names: list[str], names: Any, links: sparse.csr_matrix) -> np.ndarray:
    """Returns the rows of `names`. A new one is the mean over its links of the mean of known rows with the same link.

    `rows`: [old names, ...]. `links`: [names, links]. Without a known link, a row is the mean of all known rows.
    """
    places = Vocabulary(np.array(old_names, object), np.empty(0)).encode(list(names)) - 1
    is_new = places < 0
    new_rows = rows[places]
    if is_new.any():
        sums = links[~is_new].T @ rows[places[~is_new]].reshape(len(places) - is_new.sum(), -1).astype(np.float64)
        sizes = np.asarray(links[~is_new].sum(axis=0)).ravel()
        means = sums / np.maximum(sizes, 1)[:, None]
        new_links = links[is_new]
        num_links = new_links @ (sizes > 0)
        values = np.where(
            num_links[:, None] > 0, new_links @ means / np.maximum(num_links, 1)[:, None], rows.mean(axis=0).ravel()
        )
        new_rows[is_new] = values.reshape(-1, *rows.shape[1:])
    return new_rows
