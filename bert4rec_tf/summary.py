"""What a run says at its end."""

from pathlib import Path
from typing import Any

from bert4rec_tf.data import datasets
from bert4rec_tf.evaluation import METRICS

COLUMNS = (
    ("validation", "validation"),
    ("test", "test"),
    ("pop", "POP"),
    ("random", "random"),
    ("ceiling", "ceiling"),
    ("paper", "paper"),
)


def table(content: dict[str, Any]) -> str:
    """Returns the results as lines of text.

    Args:
        content: what `pipeline.Experiment.evaluate` returned: metrics of this run on the validation and the test
            item, and of POP, random scores, the generator (built-in data) and the paper (Table 2) on the test item.
    """
    columns = [(key, title) for key, title in COLUMNS if key in content]
    lines = [f"{'metric':<10}" + "".join(f"{title:>12}" for _, title in columns)]
    for name in METRICS:
        cells = [f"{content[key][name]:>12.4f}" if name in content[key] else f"{'-':>12}" for key, _ in columns]
        lines.append(f"{name:<10}" + "".join(cells))
    return "\n".join(lines + _notes(content))


def _notes(content: dict[str, Any]) -> list[str]:
    notes = [
        f"{content['users']:,} users, each target among {content['run']['evaluation']['num_negatives']} popular items."
    ]
    if content["users_with_fewer_candidates"]:
        notes.append(f"{content['users_with_fewer_candidates']:,} users had fewer unseen items: all of them.")
    if content["users_not_evaluated"]:
        notes.append(f"{content['users_not_evaluated']:,} users with fewer than three actions were not measured.")
    dataset = content["run"]["dataset"]
    published = datasets.paper()["table5_ndcg@10_d64"].get(dataset)
    if "paper" in content and published and content["run"]["model"] == "bert4rec":
        notes.append(f"The paper's column is its best width (Table 2); at d = 64 its NDCG@10 is {published} (Table 5).")
    if "ceiling" in content:
        notes.append("The ceiling ranks by the generator's own transition table.")
    return notes


def places(workdir: Path) -> str:
    """Returns what lies where in a work directory."""
    known = {
        "metrics.json": "these results and all settings",
        "config.json": "the run",
        "vocabulary.txt": "raw item ids, line k for item k",
        "ranks-test.npz": "the rank of every user's target",
        "choose": "training with the validation item held out: checkpoints, curve.csv, tensorboard",
        "final": "training with the validation item: the same",
        "prepared": "training examples and candidates",
    }
    lines = [f"  {name:<16} {what}" for name, what in known.items() if (workdir / name).exists()]
    return "\n".join([f"In {workdir}:", *lines])
