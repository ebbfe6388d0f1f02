"""What the paper says in words of what it has no numbers of, held against the results."""

import itertools
from collections.abc import Callable

from bert4rec_tf.data import datasets
from experiments.findings import Findings
from experiments.tables import PROPORTIONS, SEQUENTIAL, WIDTHS

ATTENTION = (
    "Rows are renormalised: each shows how a position divides its attention among the last ten, of which the very last "
    "is the mask token; what it gives to positions before them is left out. Means over all users with at least ten "
    "inputs (the mask token counts), on the test input."
)

Claim = tuple[str, str]


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
    def ndcg(dataset: str, model: str, width: int) -> float | None:
        return found.mean(dataset, f"{model}@{width}", "ndcg@10")

    best = [
        _beats(ndcg(dataset, "bert4rec", width), ndcg(dataset, other, width))
        for dataset in found.datasets()
        for width in WIDTHS
        for other in SEQUENTIAL[:-1]
    ]
    flatter = [
        _beats(_growth(found, dataset, model, 16, 64), _growth(found, dataset, model, 64, 256))
        for dataset in found.datasets()
        for model in SEQUENTIAL
    ]
    return [
        ("BERT4Rec is above every other model at every width.", _answer(best)),
        ("Results converge as the width grows (here: d = 16 to 64 brings more than 64 to 256).", _answer(flatter)),
    ]


def _growth(found: Findings, dataset: str, model: str, low: int, high: int) -> float | None:
    first, second = (found.mean(dataset, f"{model}@{width}", "ndcg@10") for width in (low, high))
    return None if first is None or second is None else second - first


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
            published = datasets.paper()["best_mask_proportion"][dataset]
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
