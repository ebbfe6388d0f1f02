"""What the paper says in words of what it has no numbers of, held against the results."""

import itertools
from collections.abc import Callable, Mapping, Sequence

from bert4rec_tf.config.paper import paper
from bert4rec_tf.data.sources import datasets
from experiments.findings import Findings
from experiments.tables import PROPORTIONS, SEQUENTIAL, TABLES, WIDTHS

ATTENTION = (
    "Rows are renormalised: each shows how a position divides its attention among the last ten, of which the very last "
    "is the mask token; what it gives to positions before them is left out. Means over all users with at least ten "
    "inputs (the mask token counts), on the test input."
)

ATTENTIVE = ("sasrec", "bert4rec")
SPARSE = ("beauty", "steam")

Claim = tuple[str, str]
Curve = Sequence[float | None]
"""A result for each of WIDTHS."""


def of(name: str, found: Findings) -> list[str]:
    """Returns the sentences about a table or figure, each with what the results say."""
    if name == "figure2":
        return [ATTENTION]
    return [f"The paper: {claim} Here: {answer}." for claim, answer in CLAIMS[name](found)]


def _answer(found: list[bool | None]) -> str:
    known = [value for value in found if value is not None]
    if not known:
        return "not run"
    return f"true in {sum(known)} of {len(known)} cases" + (f", {len(found) - len(known)} not run" * (None in found))


def _beats(first: float | None, second: float | None) -> bool | None:
    return None if first is None or second is None else first > second


def _of_width(found: Findings) -> list[Claim]:
    """Section 4.5, over the two metrics of Figure 3."""
    curves = {
        (dataset, metric, model): [found.mean(dataset, f"{model}@{width}", metric) for width in WIDTHS]
        for dataset in found.datasets()
        for metric in TABLES[found.name].metrics
        for model in SEQUENTIAL
    }
    panels = [(dataset, metric) for dataset in found.datasets() for metric in TABLES[found.name].metrics]
    flatter = [_flattens(curve) for curve in curves.values()]
    wider = {place: _falls_somewhere(curve) for place, curve in curves.items()}
    sparse = [value for (dataset, *_), value in wider.items() if dataset in SPARSE]
    dense = [value for (dataset, *_), value in wider.items() if dataset not in SPARSE]
    unstable = [_turns_most(panel, "caser", curves) for panel in panels]
    attentive = [
        _beats(ours, other)
        for panel in panels
        for model in ATTENTIVE
        for rival in SEQUENTIAL
        if rival not in ATTENTIVE
        for ours, other in zip(curves[*panel, model], curves[*panel, rival])
    ]
    best = [
        _beats(ours, other)
        for panel in panels
        for rival in SEQUENTIAL[:-1]
        for ours, other in zip(curves[*panel, "bert4rec"], curves[*panel, rival])
    ]
    return [
        ("Results converge as the width grows (here: d = 16 to 64 brings more than 64 to 256).", _answer(flatter)),
        (
            "A larger d is not necessarily better, especially on Beauty and Steam (here: a smaller one beats 256).",
            f"on Beauty and Steam {_answer(sparse)}, on MovieLens {_answer(dense)}",
        ),
        ("Caser is unstable (here: its curve turns more often than every other one).", _answer(unstable)),
        ("SASRec and BERT4Rec are above the three other models at every width.", _answer(attentive)),
        ("BERT4Rec is above every other model at every width.", _answer(best)),
    ]


def _flattens(curve: Curve) -> bool | None:
    low, middle, high = (curve[WIDTHS.index(width)] for width in (16, 64, 256))
    return None if None in (low, middle, high) else middle - low > high - middle


def _falls_somewhere(curve: Curve) -> bool | None:
    """Tells whether something narrower is better than the widest."""
    *narrower, widest = curve
    if widest is None:
        return None
    if any(value is not None and value > widest for value in narrower):
        return True
    return None if None in narrower else False


def _turns_most(panel: tuple[str, str], model: str, curves: Mapping[tuple[str, str, str], Curve]) -> bool | None:
    turns = {one: _turns(curves[*panel, one]) for one in SEQUENTIAL}
    own = turns.pop(model)
    return None if own is None or None in turns.values() else own > max(turns.values())


def _turns(curve: Curve) -> int | None:
    """Returns how often a curve goes from rising to falling or back."""
    if None in curve:
        return None
    steps = [second > first for first, second in itertools.pairwise(curve) if first != second]
    return sum(first != second for first, second in itertools.pairwise(steps))


def _of_proportion(found: Findings) -> list[Claim]:
    def ndcg(dataset: str, rho: float) -> float | None:
        return found.mean(dataset, str(rho), "ndcg@10")

    small = [_beats(ndcg(dataset, 0.2), ndcg(dataset, 0.1)) for dataset in found.datasets()]
    pairs = [pair for pair in itertools.pairwise(PROPORTIONS) if pair[0] >= 0.6]
    falling = [_beats(ndcg(dataset, low), ndcg(dataset, high)) for dataset in found.datasets() for low, high in pairs]
    bests = []
    for dataset in found.datasets():
        values = {rho: ndcg(dataset, rho) for rho in PROPORTIONS}
        if None not in values.values():
            published = paper()["best_mask_proportion"][dataset]
            title = datasets.find(dataset).title
            bests.append(f"{title} {max(values, key=values.__getitem__)} (the paper's {published})")
    return [
        ("rho = .2 is better than .1.", _answer(small)),
        ("Above rho = .6 results fall as rho rises.", _answer(falling)),
        ("The best rho is .6 on Beauty, .4 on Steam and .2 on MovieLens.", ", ".join(bests) or "not run"),
    ]


def _of_ablation(found: Findings) -> list[Claim]:
    """Section 4.8's last experiment, which has no row in Table 5."""
    if "ml-20m" not in found.datasets():
        return []
    with_it, without = (found.mean("ml-20m", variant, "ndcg@10") for variant in ("layers_4", "layers_4_no_residual"))
    answer = "not run" if with_it is None or without is None else f"{without / with_it - 1:+.1%}"
    return [("On ML-20m with L = 4, NDCG@10 falls by about 10 % without residual connections.", answer)]


CLAIMS: dict[str, Callable[[Findings], list[Claim]]] = {
    "figure3": _of_width,
    "figure4": _of_proportion,
    "table5": _of_ablation,
}
