"""What a trained model shows of itself in a notebook: a figure of its quality, and a few lines."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from bert4rec_tf.config.run_record import ALL
from bert4rec_tf.evaluation.metrics import (
    ANY,
    COUNT_BASELINES,
    FULL,
    NDCG,
    POPULAR,
    compute_per_user,
    find_served_protocol,
)
from bert4rec_tf.foundation import npz, plots
from bert4rec_tf.runs.folder import COUNTED, COUNTED_ANY, HISTORY_LENGTHS, TARGET_COUNTS, WorkDirectory
from bert4rec_tf.runs.trainings import list_trainings
from bert4rec_tf.training import loop

COUNTER = "item_transitions"
"""The model that counts, beside which others are shown."""


def plot_quality(workdir: WorkDirectory, card: Mapping[str, Any]) -> Any:
    """Returns a matplotlib figure of the training curve, and of NDCG@10 among the items that can be recommended.

    `card`: the model card. Raises UserError without matplotlib.
    """
    plots.require()
    config = workdir.read_config()
    own = find_served_protocol(config.repeats)
    counted = COUNTED_ANY if own == ANY else COUNTED
    arrays = npz.read(workdir.ranks, (own, counted, HISTORY_LENGTHS, TARGET_COUNTS))
    run = config.run
    curve = loop.read_state(workdir.path / list_trainings(run)[0]).curve
    ranks = {card["model"]: arrays[own]} | ({} if run.model == COUNTER else {"counting": arrays[counted]})
    gains = {name: compute_per_user(NDCG, model_ranks) for name, model_ranks in ranks.items()}
    traits = {
        "actions in the history": arrays[HISTORY_LENGTHS],
        "how often training saw the target": arrays[TARGET_COUNTS],
    }
    title = f"{card['model']} of {card['data']['name']}: NDCG@10 among all {'' if own == ANY else 'unseen '}items"
    items = "all unseen items" if run.training.selection_metric == FULL else f"{run.evaluation.num_negatives} popular"
    return plots.plot_quality(curve, gains, traits, title, f"NDCG@10 of validation items among {items}")


def describe_model(card: Mapping[str, Any], metrics: Mapping[str, Any], trials: pd.DataFrame | None) -> list[str]:
    """Returns lines with the model, its data and its metrics.

    `card`: the model card. `metrics`: the content of `metrics.json`. `trials`: of a search, the best first.
    """
    data = card.get("data", {})
    sizes = ", ".join(f"{data[name]:,} {name}" for name in ("users", "items", "actions") if name in data)
    lines = [f"{card.get('model')} of {data.get('name')}: {sizes}"]
    prefixes = {"test": "", **{name: f"{title} " for name, title in COUNT_BASELINES.items()}}
    for protocol, items in ((ANY, "all items"), (POPULAR, "popular items"), (FULL, "all unseen items")):
        parts = {title: metrics.get(key, {}).get(protocol) for key, title in prefixes.items()}
        cells = [f"{title}{values['ndcg@10']:.3f}" for title, values in parts.items() if values]
        lines += [f"  NDCG@10 among {items}: {', '.join(cells)}"] * bool(cells)
    if card.get("run", {}).get("training", {}).get("protocol") == ALL:
        lines.append("  (measured with a model that held out the last actions; this one was trained on them too)")
    if trials is not None:
        best = ", ".join(f"{name}={value}" for name, value in trials.astype(object).iloc[0, :-1].items())
        lines.append(f"  best of {len(trials)} trials: {best}")
    return lines
