"""What the paper says of its figures in words, which have no numbers, held against the results."""

import itertools

from bert4rec_tf.data import datasets
from experiments.findings import Findings
from experiments.tables import DATASETS, PROPORTIONS, SEQUENTIAL, WIDTHS

ATTENTION = (
    "Rows are renormalised: each shows how a position divides its attention among the last ten, of which the very last "
    "is the mask token. Means over all users with at least ten inputs, on the test input."
)


def of(name: str, found: Findings) -> list[str]:
    """Returns the sentences about a figure, each with what the results say."""
    if name == "figure2":
        return [ATTENTION]
    claims = _of_width(found) if name == "figure3" else _of_proportion(found)
    return [f"The paper: {claim} Here: {answer}." for claim, answer in claims]


def _answer(found: list[bool | None]) -> str:
    known = [value for value in found if value is not None]
    if not known:
        return "not run"
    return f"true in {sum(known)} of {len(known)} cases" + (f", {len(found) - len(known)} not run" * (None in found))


def _beats(first: float | None, second: float | None) -> bool | None:
    return None if first is None or second is None else first > second


def _of_width(found: Findings) -> list[tuple[str, str]]:
    def ndcg(dataset: str, model: str, width: int) -> float | None:
        return found.mean(dataset, f"{model}@{width}", "ndcg@10")

    chosen = [dataset for dataset in DATASETS if dataset in found.datasets()]
    best = [
        _beats(ndcg(dataset, "bert4rec", width), ndcg(dataset, other, width))
        for dataset in chosen
        for width in WIDTHS
        for other in SEQUENTIAL[:-1]
    ]
    sparse = [
        _beats(ndcg(dataset, "bert4rec", 64), ndcg(dataset, "bert4rec", 256))
        for dataset in chosen
        if dataset in ("beauty", "steam")
    ]
    return [
        ("BERT4Rec is above every other model at every width.", _answer(best)),
        ("A larger width is not always better, least on Beauty and Steam (d = 64 above d = 256).", _answer(sparse)),
    ]


def _of_proportion(found: Findings) -> list[tuple[str, str]]:
    def ndcg(dataset: str, rho: float) -> float | None:
        return found.mean(dataset, str(rho), "ndcg@10")

    chosen = [dataset for dataset in DATASETS if dataset in found.datasets()]
    small = [_beats(ndcg(dataset, 0.2), ndcg(dataset, 0.1)) for dataset in chosen]
    pairs = [pair for pair in itertools.pairwise(PROPORTIONS) if pair[0] >= 0.6]
    falling = [_beats(ndcg(dataset, low), ndcg(dataset, high)) for dataset in chosen for low, high in pairs]
    bests = []
    for dataset in chosen:
        values = {rho: ndcg(dataset, rho) for rho in PROPORTIONS}
        if None not in values.values():
            published = datasets.paper()["best_mask_proportion"][dataset]
            bests.append(f"{dataset} {max(values, key=values.__getitem__)} (paper {published})")
    return [
        ("rho = .2 is better than .1.", _answer(small)),
        ("Above rho = .6 results fall as rho rises.", _answer(falling)),
        ("The best rho is .6 on Beauty, .4 on Steam and .2 on MovieLens.", ", ".join(bests) or "not run"),
    ]
