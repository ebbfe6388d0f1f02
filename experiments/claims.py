"""What the paper says in words of its figures, held against the results."""

import itertools
from collections.abc import Callable, Iterable, Sequence

from bert4rec_tf.config.paper import paper
from bert4rec_tf.data.sources import datasets
from experiments.findings import Findings
from experiments.tables import PROPORTIONS, SEQUENTIAL, WIDTHS

ATTENTIVE = ("sasrec", "bert4rec")
SPARSE = ("beauty", "steam")

Claim = tuple[str, str]
Curve = Sequence[float | None]
"""A result for each of WIDTHS."""


def sentences(found: Findings) -> list[str]:
    """Returns the sentences about a table or figure, each with what the results say."""
    claims = CLAIMS[found.name](found) if found.name in CLAIMS else []
    return [f"The paper: {claim} Here: {answer}." for claim, answer in claims]


def _answer(found: Iterable[bool | None]) -> str:
    cases = list(found)
    known = [case for case in cases if case is not None]
    if not known:
        return "not run"
    return f"true in {sum(known)} of {len(known)} cases" + (f", {len(cases) - len(known)} not run" * (None in cases))


def _beats(first: float | None, second: float | None) -> bool | None:
    return None if first is None or second is None else first > second


def _of_width(found: Findings) -> list[Claim]:
    """Section 4.5, over the two metrics of Figure 3."""
    panels = list(itertools.product(found.datasets(), ("hr@10", "ndcg@10")))
    curves = {
        (*panel, model): [found.mean(panel[0], f"{model}@{width}", panel[1]) for width in WIDTHS]
        for panel in panels
        for model in SEQUENTIAL
    }

    def above(model: str, rivals: Iterable[str]) -> list[bool | None]:
        pairs = [zip(curves[*panel, model], curves[*panel, rival]) for panel in panels for rival in rivals]
        return [_beats(*pair) for pair in itertools.chain(*pairs)]

    def falls(of_sparse: bool) -> str:
        return _answer(_falls_somewhere(curve) for place, curve in curves.items() if (place[0] in SPARSE) == of_sparse)

    others = [model for model in SEQUENTIAL if model not in ATTENTIVE]
    unstable = (
        _turns_most(curves[*panel, "caser"], [curves[*panel, model] for model in SEQUENTIAL if model != "caser"])
        for panel in panels
    )
    return [
        (
            "Results converge as the width grows (here: d = 16 to 64 brings more than 64 to 256).",
            _answer(map(_flattens, curves.values())),
        ),
        (
            "A larger d is not necessarily better, especially on Beauty and Steam (here: a smaller one beats 256).",
            f"on Beauty and Steam {falls(True)}, on MovieLens {falls(False)}",
        ),
        ("Caser is unstable (here: its curve turns more often than every other one).", _answer(unstable)),
        (
            "SASRec and BERT4Rec are above the three other models at every width.",
            _answer([case for model in ATTENTIVE for case in above(model, others)]),
        ),
        ("BERT4Rec is above every other model at every width.", _answer(above("bert4rec", SEQUENTIAL[:-1]))),
    ]


def _flattens(curve: Curve) -> bool | None:
    low, middle, high = (curve[WIDTHS.index(width)] for width in (16, 64, 256))
    return None if None in (low, middle, high) else middle - low > high - middle


def _falls_somewhere(curve: Curve) -> bool | None:
    """Tells whether something narrower is better than the widest."""
    better = [_beats(value, curve[-1]) for value in curve[:-1]]
    return True if True in better else None if None in better else False


def _turns_most(curve: Curve, others: Iterable[Curve]) -> bool | None:
    own, *rest = map(_turns, (curve, *others))
    return None if own is None or None in rest else own > max(rest)


def _turns(curve: Curve) -> int | None:
    """Returns how often a curve goes from rising to falling or back."""
    if None in curve:
        return None
    steps = [second > first for first, second in itertools.pairwise(curve) if first != second]
    return sum(first != second for first, second in itertools.pairwise(steps))


def _of_proportion(found: Findings) -> list[Claim]:
    small, falling, bests = [], [], []
    for dataset in found.datasets():
        curve = {rho: found.mean(dataset, str(rho), "ndcg@10") for rho in PROPORTIONS}
        small.append(_beats(curve[0.2], curve[0.1]))
        falling += [_beats(curve[low], curve[high]) for low, high in itertools.pairwise(PROPORTIONS) if low >= 0.6]
        if None not in curve.values():
            published = paper()["best_mask_proportion"][dataset]
            bests.append(f"{datasets.find(dataset).title} {max(curve, key=curve.get)} (the paper's {published})")
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
