"""What a run, its repetitions and comparisons end with, as lines of text."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bert4rec_tf.config.data_names import family
from bert4rec_tf.config.paper import paper
from bert4rec_tf.config.run import RETRAIN, SELECT
from bert4rec_tf.evaluation.metrics import FULL, METRICS, POPULAR, PROTOCOLS, UNIFORM
from bert4rec_tf.export.layout import SAVED_MODEL
from bert4rec_tf.runs.comparison import Comparison

COLUMNS = (
    ("validation", "validation"),
    ("test", "test"),
    ("pop", "POP"),
    ("random", "random"),
    ("ceiling", "ceiling"),
    ("paper", "paper"),
)


def table(content: dict[str, Any]) -> str:
    """Returns the results of a run.

    Args:
        content: what `pipeline.Experiment.evaluate` returned: metrics of this run on the validation and the test
            item, and of POP, random scores, the generator (built-in data) and the paper (Table 2) on the test item.
    """
    columns = [(key, title) for key, title in COLUMNS if key in content]

    def cells(protocol: str, name: str) -> list[str]:
        values = [content[key].get(protocol, {}).get(name) for key, _ in columns]
        return ["-" if value is None else f"{value:.4f}" for value in values]

    lines = _blocks([title for _, title in columns], content["run"]["evaluation"]["num_negatives"], cells)
    return "\n".join([*lines, "", *_notes(content)])


def seeds_table(content: dict[str, Any], num_negatives: int) -> str:
    """Returns the mean and deviation over seeds. `content`: what `seeds.repeat` returned."""

    def cells(protocol: str, name: str) -> list[str]:
        found = content["test"][protocol][name]
        return [f"{found['mean']:.4f}", f"{found['deviation']:.4f}", *(f"{value:.4f}" for value in found["values"])]

    titles = ["mean", "deviation", *(f"seed {seed}" for seed in content["seeds"])]
    return "\n".join(_blocks(titles, num_negatives, cells))


def comparison_table(comparison: Comparison, num_negatives: int) -> str:
    """Returns two runs beside each other, with the gain of the second and its 95 % confidence interval."""

    def cells(protocol: str, name: str) -> list[str]:
        found = comparison[protocol][name]
        numbers = [f"{value:.4f}" for value in (found.first, found.second)]
        gains = [f"{value:+.4f}" for value in (found.mean, found.low, found.high)]
        return [*numbers, *gains, f"{found.p_value:.2g}"]

    lines = _blocks(["first", "second", "difference", "from", "to", "p"], num_negatives, cells)
    return "\n".join([*lines, "", "Paired over users; 95 % confidence interval. Many comparisons ask for a smaller p."])


def _blocks(titles: Sequence[str], num_negatives: int, cells: Callable[[str, str], list[str]]) -> list[str]:
    """One block of lines per protocol."""
    among = {POPULAR: f"{num_negatives} popular", UNIFORM: f"{num_negatives} uniform", FULL: "all unseen"}
    lines = [f"{'metric':<12}" + "".join(f"{title:>12}" for title in titles)]
    for protocol in PROTOCOLS:
        lines.append(f"among {among[protocol]} items")
        lines += [f"{name:<12}" + "".join(f"{cell:>12}" for cell in cells(protocol, name)) for name in METRICS]
    return lines


def _notes(content: dict[str, Any]) -> list[str]:
    notes = [f"{content['users']:,} users."]
    if content["users_with_fewer_candidates"]:
        notes.append(f"{content['users_with_fewer_candidates']:,} users had fewer unseen items: all of them.")
    if content["users_not_evaluated"]:
        notes.append(f"{content['users_not_evaluated']:,} users with fewer than three actions were not measured.")
    dataset = family(content["run"]["dataset"])
    published = paper()["table5"].get(dataset, {}).get("default", {}).get("ndcg@10")
    if "paper" in content and published and content["run"]["model"] == "bert4rec":
        notes.append(f"The paper's column is its best width (Table 2); at d = 64 its NDCG@10 is {published} (Table 5).")
    if "initial" in content:
        notes.append(content["initial"]["leak"])
    if "ceiling" in content:
        notes.append("The ceiling ranks by the generator's own transition table.")
    return notes


def start(initial: dict[str, Any]) -> str:
    """Returns what a warm start begins with. `initial`: what `pipeline.Experiment.initial` returned."""
    step = "" if initial.get("step") is None else f", step {initial['step']:,}"
    found = [
        f"{what}: {initial[what]['kept']:,} found, {initial[what]['new']:,} new, {initial[what]['gone']:,} gone"
        for what in ("items", "users")
        if what in initial
    ]
    return f"Starts from {initial['path']} ({initial['checkpoint']}{step}). {'; '.join(found)}.\n{initial['leak']}"


def places(workdir: Path) -> str:
    """Returns what lies where in a work directory."""
    has_picture = any((workdir / phase / "curve.png").exists() for phase in (SELECT, RETRAIN))
    curves = "curve.csv, curve.png" if has_picture else "curve.csv"
    known = {
        "metrics.json": "these results and all settings",
        "config.json": "the run",
        "vocabulary.txt": "raw item ids, line k for item k; counts.txt: how often each occurs",
        "initial.npz": "the weights that it started from",
        "ranks-test.npz": "the rank of every user's target",
        SELECT: f"training with the validation item held out: checkpoints, {curves}, tensorboard",
        RETRAIN: "training with the validation item: the same",
        "prepared": "training examples and candidates",
        SAVED_MODEL: "the model for TensorFlow: raw ids in, raw ids out, and its card in assets.extra",
        "seeds.json": "the metrics of every seed",
    }
    lines = [f"  {name:<16} {what}" for name, what in known.items() if (workdir / name).exists()]
    return "\n".join([f"In {workdir}:", *lines])
