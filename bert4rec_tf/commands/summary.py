"""The tables that a run and a comparison print at the end."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert4rec_tf.config.data_names import join_names
from bert4rec_tf.config.model_settings import COUNTING_MODELS
from bert4rec_tf.config.run_record import ALL
from bert4rec_tf.evaluation.metrics import (
    ANY,
    COLD,
    COUNT_BASELINES,
    FULL,
    LIST_METRICS,
    MANY_REPEATS,
    METRICS,
    NDCG,
    NEW,
    POPULAR,
    PROTOCOLS,
    SEED_SPREAD,
    UNIFORM,
)
from bert4rec_tf.runs.comparison import Comparison

TRANSITIONS_MODEL = "item_transitions"
COLUMNS = ("validation", "test", *COUNT_BASELINES, "random", "ceiling", "paper")


def make_table(content: dict[str, Any]) -> str:
    """Returns the results of a run as text. `content`: from `Experiment.evaluate`."""
    columns = [key for key in COLUMNS if content.get(key)]

    def cells(protocol: str, name: str) -> list[str]:
        values = [content[key].get(protocol, {}).get(name) for key in columns]
        return ["-" if value is None else f"{value:.4f}" for value in values]

    titles, number = [COUNT_BASELINES.get(key, key) for key in columns], content["run"]["evaluation"]["num_negatives"]
    protocols = (ANY, *PROTOCOLS, NEW) if ANY in content.get("test", {}) else PROTOCOLS
    lines = _make_blocks(titles, number, cells, (*METRICS, *LIST_METRICS), protocols)
    return "\n".join([*lines, "", *_make_notes(content)])


def make_short_table(content: dict[str, Any]) -> str:
    """Returns NDCG@10 and HR@10 of a run and of counting, with what to know. `content`: as for `make_table`."""
    model, number = content["run"]["model"], content["run"]["evaluation"]["num_negatives"]
    rankers = {model: content["test"]}
    for key, title in {TRANSITIONS_MODEL: "item_transitions (counting)", "pop": "popularity"}.items():
        if key != model:
            rankers[title] = content.get(key)
    meaning = "how high it ranks (NDCG@10), and how often among the ten best (HR@10)"
    lines = [f"The next item of {content['users']:,} users: {meaning}"]
    protocols = (ANY, FULL, POPULAR) if ANY in content["test"] else (FULL, POPULAR)
    names = {protocol: _name_candidates(protocol, number) for protocol in protocols}
    width = max(20, *(len(name) + 2 for name in names.values()))
    lines.append(f"{'among':<{width}}{'ranked by':<29}{'NDCG@10':>8}{'HR@10':>9}")
    for protocol, candidates in names.items():
        for title, metrics in rankers.items():
            if metrics:
                values = metrics[protocol]
                lines.append(f"{candidates:<{width}}{title:<29}{values[NDCG]:>8.4f}{values['hr@10']:>9.4f}")
    return "\n".join([*lines, *_describe_networks(content), *_make_warnings(content)])


def _describe_networks(content: dict[str, Any]) -> list[str]:
    """Returns how the networks of an ensemble were joined, in a line; nothing for a single network."""
    if "networks" not in content:
        return []
    networks = content["networks"]
    shares = " and ".join(f"{share:g} of {name}" for name, share in networks["shares"].items())
    singles = ", ".join(f"{name} alone {ndcg:.4f}" for name, ndcg in networks["alone"].items())
    return [f"Networks, by NDCG@10 on the validation items: {shares} {networks['joined']:.4f}; {singles}."]


def _make_warnings(content: dict[str, Any]) -> list[str]:
    """Returns the notes that change how every table is read: on repeats and a warm start."""
    notes = []
    if ANY in content.get("test", {}):
        share = f"{content['repeats']['validation']:.0%}".replace("%", " %")
        notes.append(
            f"{share} of the validation items are items the user had before, so the model recommends seen items too, "
            "unless told otherwise, and is judged among all items: among unseen ones, such an item stands out."
        )
    repeats = content.get("repeats", {"validation": 0.0, "test": 0.0})
    if len({share > MANY_REPEATS for share in repeats.values()}) > 1:
        notes.append(
            f"{repeats['validation']:.0%} of the validation items, but {repeats['test']:.0%} of the test items are "
            "items the user had before. Are rows logged twice? Whether to recommend seen items goes by the former."
        )
    if "initial" in content:
        notes.append(content["initial"]["leak"])
    return notes


def make_metrics_table(metrics: Mapping[str, Mapping[str, float]], num_negatives: int) -> str:
    """Returns the metrics of one run. `metrics`: protocol -> metric -> value."""

    def cells(protocol: str, name: str) -> list[str]:
        return [f"{metrics[protocol][name]:.4f}"]

    return "\n".join(_make_blocks(["test"], num_negatives, cells, list(metrics[FULL]), list(metrics)))


def make_comparison_table(comparison: Comparison, num_negatives: int) -> str:
    """Returns two runs side by side, with their difference and its 95 % confidence interval."""

    def cells(protocol: str, name: str) -> list[str]:
        difference = comparison[protocol][name]
        means = [f"{value:.4f}" for value in (difference.first, difference.second)]
        interval = [f"{value:+.4f}" for value in (difference.mean, difference.low, difference.high)]
        return [*means, *interval, f"{difference.p_value:.2g}"]

    titles = ["first", "second", "difference", "low", "high", "p"]
    lines = _make_blocks(titles, num_negatives, cells, list(comparison[FULL]), list(comparison))
    interval = "low, high: 95 % confidence interval of the difference, paired over users."
    return "\n".join([*lines, "", interval, "If you compare many metrics or models, require a smaller p."])


def _make_blocks(
    titles: Sequence[str],
    num_negatives: int,
    cells: Callable[[str, str], list[str]],
    names: Sequence[str] = METRICS,
    protocols: Sequence[str] = PROTOCOLS,
) -> list[str]:
    """Returns a header and one block of lines per protocol."""
    widths = [max(12, len(title) + 2) for title in titles]

    def line(first: str, texts: Sequence[str]) -> str:
        return f"{first:<14}" + "".join(f"{text:>{width}}" for text, width in zip(texts, widths))

    lines = [line("metric", titles)]
    for protocol in protocols:
        lines.append(f"among {_name_candidates(protocol, num_negatives)}")
        lines += [line(name, cells(protocol, name)) for name in names]
    return lines


def _name_candidates(protocol: str, num_negatives: int) -> str:
    """Returns the items among which a protocol ranks the target."""
    return {
        POPULAR: f"{num_negatives} popular items",
        UNIFORM: f"{num_negatives} uniform items",
        FULL: "all unseen items",
        NEW: "all unseen items, without the targets that are repeats",
        ANY: "all items, seen ones too",
    }[protocol]


def _make_notes(content: dict[str, Any]) -> list[str]:
    notes = [f"{content['users']:,} users evaluated."]
    if content["users_with_fewer_candidates"]:
        num_negatives = content["run"]["evaluation"]["num_negatives"]
        fact = f"{content['users_with_fewer_candidates']:,} users have fewer than {num_negatives} unseen items"
        notes.append(f"{fact}; their targets are ranked among all of them.")
    if content["users_not_evaluated"]:
        fact = f"{content['users_not_evaluated']:,} users with too few actions"
        notes.append(f"{fact} to hold one out were not evaluated.")
    if content["run"]["training"]["protocol"] == ALL:
        notes.append(
            "These metrics are of the model that held out the last actions; the exported one was trained on them too."
        )
    if "paper" in content:
        notes.append("paper: Table 2, with the best width for this data set.")
    if COLD in content:
        limit = content[COLD]["below"]
        for name, bound in ((COLD, f"fewer than {limit}"), ("others", f"at least {limit}")):
            notes.append(_describe_targets(name, bound, content[COLD][name]))
    if "ceiling" in content:
        notes.append("ceiling: ranking by the true transition probabilities of the built-in data.")
    return notes + _describe_networks(content) + _make_warnings(content)


def _describe_targets(name: str, bound: str, metrics: dict[str, Any]) -> str:
    if not metrics["targets"]:
        return f"{name}: no targets with {bound} training actions"
    values = "hr@10 {hr@10:.4f}, ndcg@10 {ndcg@10:.4f}, median rank {median_rank:,.0f}".format(**metrics)
    return f"{name}: {metrics['targets']:,} targets with {bound} training actions: {values}"


def describe_start(initial: dict[str, Any]) -> str:
    """Returns the description of a warm start. `initial`: `StartWeights.record`."""
    step = "" if initial.get("step") is None else f", step {initial['step']:,}"
    changes = [
        f"{kind}: " + ", ".join(f"{initial[kind][name]:,} {name}" for name in ("shared", "added", "removed"))
        for kind in ("items", "users")
        if kind in initial
    ]
    return f"Starts from {initial['path']} ({initial['checkpoint']}{step}). {'; '.join(changes)}.\n{initial['leak']}"


def compare_with_counting(content: dict[str, Any]) -> str:
    """Returns up to two lines that compare NDCG@10 with that of counting. `content`: as for `make_table`."""
    test, model, number = content["test"], content["run"]["model"], content["run"]["evaluation"]["num_negatives"]
    baselines = [key for key in COUNT_BASELINES if key in content and key != model]
    rivals = []
    for protocol in (ANY, POPULAR, FULL) if ANY in test else (POPULAR, FULL):
        names = [COUNT_BASELINES[key] for key in baselines if content[key][protocol][NDCG] >= test[protocol][NDCG]]
        if names:
            rivals.append(f"{' and '.join(names)} among {_name_candidates(protocol, number)}")
    lines = []
    if rivals:
        lines.append(f"Counting is as good or better: {', '.join(rivals)}.")
    if content.get("beyond_counting") and model not in COUNTING_MODELS:
        lines.append(_compare_with_transitions(content["beyond_counting"], number))
    return "\n".join(lines)


def _compare_with_transitions(difference: dict[str, Any], num_negatives: int) -> str:
    """Returns what the network adds to counting. `difference`: the `beyond_counting` of `metrics.json`."""
    interval = f"{difference['mean']:+.4f} (95 % interval {difference['low']:+.4f} to {difference['high']:+.4f})"
    items = _name_candidates(difference.get("protocol", FULL), num_negatives)
    gain = f"{interval} of NDCG@10 among {items}"
    if abs(difference["mean"]) < SEED_SPREAD * difference["first"] and difference["low"] * difference["high"] > 0:
        gain += f"; below {SEED_SPREAD:.0%}, another seed may turn it round".replace("%", " %")
    if difference["low"] > 0:
        return f"Beyond counting transitions, the network adds {gain}."
    if difference["high"] < 0:
        return (
            f"The network is worse than counting transitions: {gain}. Serve counting: --model={TRANSITIONS_MODEL} "
            "takes seconds."
        )
    return (
        f"The network adds nothing certain to counting transitions: {gain}. --model={TRANSITIONS_MODEL} takes seconds."
    )


def make_next_command(model: Path, history: Sequence[str], user: str | None) -> str:
    """Returns the command that recommends by an exported model, given a history and, if the model needs one, a user."""
    words = ["bert4rec", "recommend", f"--model={model}", f"--history={join_names(history)}"]
    words += [] if user is None else [f"--user={join_names([user])}"]
    return f"Next: {shlex.join(words)}"
