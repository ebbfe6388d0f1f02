"""What is to be known of data before a model is trained on them."""

from pathlib import Path
from typing import Any

import numpy as np

from bert4rec_tf.data.sequences import LeaveOneOut, Sequences

PERCENTILES = (0, 5, 25, 50, 75, 95, 100)
SHARES = (0.001, 0.01, 0.1, 0.2, 0.5)
RARE = (1, 5)


def of(sequences: Sequences) -> dict[str, Any]:
    """Returns the statistics of data.

    Returns:
        `lengths`, `popularity`: percentile -> actions per user, and per item; `top`: share of the items -> share of the
        actions that the most popular so many have; `gini`: of the items' popularity, 0 where all are equally popular;
        `rare`: bound -> items with at most so many actions; `evaluated`: users with a test item; `never_trained`: the
        share of their test items that do not occur in training, with and without the validation items in it.
    """
    split, counts = LeaveOneOut(sequences), np.sort(sequences.vocabulary.counts)[::-1]
    total = np.cumsum(counts)
    places, number = np.arange(1, len(counts) + 1), len(counts)
    return {
        "lengths": _percentiles(sequences.lengths),
        "popularity": _percentiles(counts),
        "top": {share: float(total[max(1, round(share * len(counts))) - 1] / total[-1]) for share in SHARES},
        "gini": float((number + 1 - 2 * (places * counts).sum() / total[-1]) / number),
        "rare": {bound: int((counts <= bound).sum()) for bound in RARE},
        "evaluated": len(split.users),
        "never_trained": {
            "with_validation": _never_trained(split, True),
            "without_validation": _never_trained(split, False),
        },
    }


def _percentiles(values: np.ndarray) -> dict[int, float]:
    return dict(zip(PERCENTILES, np.percentile(values, PERCENTILES).tolist()))


def _never_trained(split: LeaveOneOut, with_validation: bool) -> float | None:
    """Returns the share of test items that a model cannot know; None where there are no test items."""
    if not len(split.users):
        return None
    trained = split.training(with_validation).counts()
    return float((trained[split.targets("test")] == 0).mean())


def table(found: dict[str, Any]) -> str:
    """Returns statistics as lines of text."""
    lines = [f"{'percentile of users or items':<32}" + "".join(f"{percent:>9}%" for percent in PERCENTILES)]
    for name, title in (("lengths", "actions of a user"), ("popularity", "actions of an item")):
        lines.append(f"{title:<32}" + "".join(f"{value:>10,.0f}" for value in found[name].values()))
    lines.append("")
    lines.append(f"{'the most popular items':<32}" + "".join(f"{share:>10.1%}" for share in found["top"]))
    lines.append(f"{'have of all actions':<32}" + "".join(f"{share:>10.1%}" for share in found["top"].values()))
    rare = ", ".join(f"{count:,} with at most {bound}" for bound, count in found["rare"].items())
    lines += ["", f"Gini coefficient of popularity: {found['gini']:.3f}. Items by actions: {rare}."]
    shares = found["never_trained"]
    if found["evaluated"]:
        lines.append(
            f"{found['evaluated']:,} users have a test item; of these {shares['with_validation']:.2%} never occur "
            f"in training, {shares['without_validation']:.2%} while the validation items are held out."
        )
    else:
        lines.append("No user has three actions, so there is no test item.")
    return "\n".join(lines)


def plot(path: Path, sequences: Sequences, title: str) -> None:
    """Draws the distributions of lengths and popularity on logarithmic axes. `path` ends in `.png`."""
    from bert4rec_tf.foundation import plots

    lengths = np.sort(sequences.lengths)[::-1]
    plots.plot_ranked(path, {"users": lengths, "items": np.sort(sequences.vocabulary.counts)[::-1]}, title)
