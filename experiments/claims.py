"""The paper's claims about its tables and figures, tested on the results."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from bert4rec_tf.config.paper import read_paper
from bert4rec_tf.evaluation.metrics import METRICS, NDCG
from experiments.findings import SAMPLES, Findings
from experiments.grids import LARGE_DROP, NOT_RUN, find_title
from experiments.tables import MODELS, PROPORTIONS, SEQUENTIAL, TABLES, WIDTHS

SPARSE, LONG = ("beauty", "steam"), ("ml-1m", "ml-20m")
"""Data sets of short and of long histories."""

BIDIRECTION = "BERT4Rec with one mask beats SASRec, so bidirection helps"
CLOZE = "More masks are better than one, so the Cloze task helps"

Claim = tuple[str, str]
"""What the paper says, and in which cases it is true here."""


def write_sentences(findings: Findings) -> list[str]:
    """Returns the paper's claims about a table or figure, each with what the results say."""
    claims = CLAIMS[findings.name](findings) if findings.name in CLAIMS else []
    return [f"The paper says: {claim} Here: {answer}." for claim, answer in claims]


def count_cases(first: ArrayLike, second: ArrayLike) -> str:
    """Returns a text: in how many cases the first number is above the second. A case with NaN was not run."""
    differences = np.subtract(first, second)
    values = differences[~np.isnan(differences)]
    if not values.size:
        return NOT_RUN
    num_missing = differences.size - values.size
    return f"true in {np.sum(values > 0)} of {values.size} cases" + f", {num_missing} not run" * (num_missing > 0)


def count_above(
    findings: Findings, models: Sequence[str], rivals: Sequence[str], metrics: Sequence[str] = METRICS
) -> str:
    """Returns `count_cases` of each model and each rival, for each data set and metric."""
    model_means, rival_means = (findings.compute_means(variants, metrics) for variants in (models, rivals))
    return count_cases(model_means[..., None], rival_means[..., None, :])


def _claim_models(findings: Findings) -> list[Claim]:
    """Returns the claims of section 4.4, tested by every metric of Table 2."""
    leads = []
    for dataset, means in zip(findings.list_datasets(), findings.compute_means(list(MODELS), METRICS)):
        if not np.isnan(means).any():
            count = np.sum(means[:, -1] > means[:, :-1].max(axis=1))
            leads.append(f"in {count} of {len(METRICS)} metrics on {find_title(dataset)}")
    best = "BERT4Rec is the best of all (here: of the paper's nine models)."
    comparisons: list[tuple[str, Sequence[str], Sequence[str]]] = [
        ("POP is the worst.", [model for model in MODELS if model != "pop"], ["pop"]),
        ("Sequential models beat BPR-MF and NCF.", ("fpmc", *SEQUENTIAL), ("bpr_mf", "ncf")),
        ("Caser beats FPMC.", ["caser"], ["fpmc"]),
        ("Caser is worse than GRU4Rec+ and SASRec.", ("gru4rec_plus", "sasrec"), ["caser"]),
        ("SASRec beats GRU4Rec and GRU4Rec+.", ["sasrec"], ("gru4rec", "gru4rec_plus")),
        (f"{BIDIRECTION} (here: the presets' widths and losses differ).", ["bert4rec_one_mask"], ["sasrec"]),
        (f"{CLOZE} (here: at the preset's width).", ["bert4rec"], ["bert4rec_one_mask"]),
    ]
    claims = [(claim, count_above(findings, models, rivals)) for claim, models, rivals in comparisons]
    return [*claims[:5], (best, ", ".join(leads) or "not run with every model"), *claims[5:]]


def _claim_bidirection(findings: Findings) -> list[Claim]:
    """Returns the claims of section 4.4, question 1."""
    metrics = TABLES[findings.name].metrics
    return [
        (f"{BIDIRECTION}.", count_above(findings, ["one_mask"], ["sasrec"], metrics)),
        (f"{CLOZE}.", count_above(findings, ["bert4rec"], ["one_mask"], metrics)),
    ]


def _claim_width(findings: Findings) -> list[Claim]:
    """Returns the claims of section 4.5, tested by the two metrics of Figure 3."""
    names = [f"{model}@{width}" for model in SEQUENTIAL for width in WIDTHS]
    curves = findings.compute_means(names, TABLES[findings.name].metrics)
    curves = curves.reshape(*curves.shape[:2], len(SEQUENTIAL), len(WIDTHS))
    ends = curves[..., [0, WIDTHS.index(64), -1]]
    sparse = np.isin(findings.list_datasets(), SPARSE)
    smaller, largest = curves[..., :-1].max(axis=-1), curves[..., -1]
    turns = np.abs(np.diff(np.sign(np.diff(curves)))).sum(axis=-1)
    is_caser = np.equal(SEQUENTIAL, "caser")
    plain, attentive = curves[..., :3, None, :], curves[..., None, 3:, :]
    bert4rec, others = curves[..., -1:, :], curves[..., :-1, :]
    return [
        (
            "Results converge as the width grows (here: they rise more from d = 16 to 64 than from 64 to 256).",
            count_cases(*np.moveaxis(np.diff(ends), -1, 0)),
        ),
        (
            "A larger d is not necessarily better, especially on Beauty and Steam (here: some smaller d beats 256).",
            f"on Beauty and Steam {count_cases(smaller[sparse], largest[sparse])}, "
            f"on MovieLens {count_cases(smaller[~sparse], largest[~sparse])}",
        ),
        (
            "Caser is unstable (here: its curve changes direction more often than any other).",
            count_cases(turns[..., is_caser][..., 0], turns[..., ~is_caser].max(axis=-1)),
        ),
        (
            "SASRec and BERT4Rec are above the three other models at every width.",
            count_cases(attentive, plain),
        ),
        ("BERT4Rec is above every other model at every width.", count_cases(bert4rec, others)),
    ]


def _claim_proportion(findings: Findings) -> list[Claim]:
    curves = findings.compute_means(list(map(str, PROPORTIONS)), [NDCG])[:, 0]
    bests = [
        f"{find_title(dataset)} {PROPORTIONS[curve.argmax()]} (the paper's {paper_best})"
        for dataset, curve in zip(findings.list_datasets(), curves)
        if not np.isnan(curve).any() and (paper_best := read_paper()["best_mask_proportion"][dataset])
    ]
    first = PROPORTIONS.index(0.6)
    return [
        ("rho = .2 is better than .1.", count_cases(curves[:, 1], curves[:, 0])),
        ("Above rho = .6 results fall as rho rises.", count_cases(curves[:, first:-1], curves[:, first + 1 :])),
        ("The best rho is .6 on Beauty, .4 on Steam and .2 on MovieLens.", ", ".join(bests) or "not run at every rho"),
    ]


def _claim_length(findings: Findings) -> list[Claim]:
    """Returns the claims of section 4.7."""
    bests, speeds = [], []
    for dataset in findings.list_datasets():
        lengths = sorted(findings.list_variants(dataset), key=int)
        (means,) = findings.compute_means(lengths, [NDCG, SAMPLES], [dataset])
        speeds.append(means[1])
        if not np.isnan(means[0]).any():
            bests.append(f"{find_title(dataset)} {lengths[means[0].argmax()]}")
    shorter, longer = (np.concatenate([row[part] for row in speeds]) for part in (slice(None, -1), slice(1, None)))
    return [
        ("The best N is 20 on Beauty and 200 on ML-1m.", ", ".join(bests) or "not run at every N"),
        ("Training gets slower as N grows (here: from each N to the next).", count_cases(shorter, longer)),
    ]


def _claim_ablation(findings: Findings) -> list[Claim]:
    """Returns the claims of section 4.8, tested by shares: a variant's result divided by its data set's default."""

    def share(datasets: Sequence[str], variants: Sequence[str], default: str = "default") -> np.ndarray:
        """Returns shares of NDCG@10 [datasets, variants]; NaN if both are the same run or one is missing."""
        means, bases = (findings.compute_means(names, [NDCG], datasets)[:, 0] for names in (variants, [default]))
        is_same = [
            [findings.list_lines(name, variant) == findings.list_lines(name, default) for variant in variants]
            for name in datasets
        ]
        return np.where(np.reshape(is_same, means.shape), np.nan, means / bases)

    names = findings.list_datasets()
    long_names, sparse_names = ([name for name in group if name in names] for group in (LONG, SPARSE))
    other_names = [name for name in names if name != "beauty"]
    small_data = ("no_layer_norm", "no_residual", "no_dropout")
    no_feed_forward = [share(group, ["no_feed_forward"]) for group in (sparse_names, long_names)]
    layers = share(names, ["layers_3", "layers_4", "layers_1"])
    claims = [
        (
            "Without positions, results fall far on long histories (here: over 10 % on MovieLens).",
            count_cases(LARGE_DROP, share(long_names, ["no_positions"])),
        ),
        (
            "Long histories gain more from the feed-forward networks (here: MovieLens loses more without them).",
            count_cases(no_feed_forward[0], no_feed_forward[1].T),
        ),
        (
            "Layer norm, residual connections and dropout matter most on small data (here: Beauty loses more).",
            count_cases(share(other_names, small_data), share(["beauty"], small_data)),
        ),
        ("Three and four layers beat two, and two beat one.", count_cases(layers * [1, 1, -1], [1, 1, -1])),
        (
            "Long histories prefer more heads (here: four heads beat one on MovieLens).",
            count_cases(share(long_names, ["heads_4"]), share(long_names, ["heads_1"])),
        ),
        (
            "Beauty prefers fewer heads (here: one head beats eight).",
            count_cases(share(["beauty"], ["heads_1"]), share(["beauty"], ["heads_8"])),
        ),
    ]
    if "ml-20m" in names:
        ratio = share(["ml-20m"], ["layers_4_no_residual"], "layers_4").item()
        answer = NOT_RUN if np.isnan(ratio) else f"{ratio - 1:+.1%}"
        claims.append(("On ML-20m with L = 4, NDCG@10 falls by about 10 % without residual connections.", answer))
    return claims


CLAIMS: dict[str, Callable[[Findings], list[Claim]]] = {
    "table2": _claim_models,
    "table3": _claim_bidirection,
    "table4": _claim_length,
    "table5": _claim_ablation,
    "figure3": _claim_width,
    "figure4": _claim_proportion,
}
