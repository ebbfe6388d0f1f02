"""Statistics of a data set before training."""

from typing import Any

import numpy as np

from bert4rec_tf.data.sequences import LeaveOneOut, Sequences

PERCENTILES = (0, 5, 25, 50, 75, 95, 100)
TOP_SHARES = (0.001, 0.01, 0.1, 0.2, 0.5)
RARE = (1, 5)


def compute_statistics(sequences: Sequences) -> dict[str, Any]:
    """Returns statistics of a data set.

    Returns:
        `lengths`, `popularity`: percentile -> actions per user and per item.
        `top`: fraction of the items -> fraction of all actions that the most popular items have.
        `gini`: Gini coefficient of the popularity, 0 if all items are equally popular.
        `rare`: bound -> number of items with at most this many actions.
        `evaluated`: number of users with a test item.
        `never_trained`: fraction of test items that do not occur in training, with and without the validation items.
    """
    split, counts = LeaveOneOut(sequences), np.sort(sequences.vocabulary.counts)[::-1]
    total, number = np.cumsum(counts), len(counts)
    places = np.arange(1, number + 1)
    return {
        "lengths": _compute_percentiles(sequences.lengths),
        "popularity": _compute_percentiles(counts),
        "top": {share: float(total[max(1, round(share * number)) - 1] / total[-1]) for share in TOP_SHARES},
        "gini": float((number + 1 - 2 * (places * counts).sum() / total[-1]) / number),
        "rare": {bound: int((counts <= bound).sum()) for bound in RARE},
        "evaluated": len(split.users),
        "never_trained": {
            "with_validation": _compute_never_trained(split, True),
            "without_validation": _compute_never_trained(split, False),
        },
    }


def _compute_percentiles(values: np.ndarray) -> dict[int, float]:
    return dict(zip(PERCENTILES, np.percentile(values, PERCENTILES).tolist()))


def _compute_never_trained(split: LeaveOneOut, with_validation: bool) -> float | None:
    """Returns the fraction of test items that do not occur in training; None if there are no test items."""
    if not len(split.users):
        return None
    counts = split.training(with_validation).count_items()
    return float((counts[split.targets("test")] == 0).mean())


def format_table(statistics: dict[str, Any]) -> str:
    """Returns the result of `compute_statistics` as text."""
    lines = [f"{'percentile of users or items':<32}" + "".join(f"{percent:>9}%" for percent in PERCENTILES)]
    for name, title in (("lengths", "actions of a user"), ("popularity", "actions of an item")):
        lines.append(f"{title:<32}" + "".join(f"{value:>10,.0f}" for value in statistics[name].values()))
    top = statistics["top"]
    lines.append("")
    lines.append(f"{'the most popular items':<32}" + "".join(f"{share:>10.1%}" for share in top))
    lines.append(f"{'have of all actions':<32}" + "".join(f"{share:>10.1%}" for share in top.values()))
    bins = ", ".join(f"{count:,} with at most {bound}" for bound, count in statistics["rare"].items())
    lines += ["", f"Gini coefficient of popularity: {statistics['gini']:.3f}. Items by number of actions: {bins}."]
    if not statistics["evaluated"]:
        note = "No user has a test item: an action after two others, which lie before --test_from if that is given."
        return "\n".join([*lines, note])
    shares = statistics["never_trained"]
    lines.append(
        f"{statistics['evaluated']:,} users have a test item. {shares['with_validation']:.2%} of the test items "
        f"never occur in training; {shares['without_validation']:.2%} if the validation items are held out too."
    )
    return "\n".join(lines)
