"""The paper's claims about its tables and figures, tested on the results."""

import itertools
from collections.abc import Callable, Iterable, Sequence

from bert4rec_tf.config.paper import read_paper
from bert4rec_tf.evaluation.metrics import METRICS
from experiments.findings import SAMPLES, Findings
from experiments.grids import LARGE_DROP, NOT_RUN, find_title
from experiments.tables import MODELS, PROPORTIONS, SEQUENTIAL, TABLES, WIDTHS

ATTENTIVE = ("sasrec", "bert4rec")
SPARSE, LONG = ("beauty", "steam"), ("ml-1m", "ml-20m")
"""Data sets of short and of long histories."""

Claim = tuple[str, str]
Curve = Sequence[float | None]
"""A result for each of WIDTHS; None if not run."""


def write_sentences(findings: Findings) -> list[str]:
    """Returns the paper's claims about a table or figure, each with what the results say."""
    claims = CLAIMS[findings.name](findings) if findings.name in CLAIMS else []
    return [f"The paper says: {claim} Here: {answer}." for claim, answer in claims]


def _count_cases(results: Iterable[bool | None]) -> str:
    cases = list(results)
    decided = [case for case in cases if case is not None]
    if not decided:
        return NOT_RUN
    return f"true in {sum(decided)} of {len(decided)} cases" + (
        f", {len(cases) - len(decided)} not run" * (None in cases)
    )


def _beats(first: float | None, second: float | None) -> bool | None:
    return None if first is None or second is None else first > second


def _compare_each(
    findings: Findings, models: Iterable[str], rivals: Iterable[str], metrics: Iterable[str] = METRICS
) -> list[bool | None]:
    """Returns, for each data set and metric, whether each model beats each rival; None if not run."""
    return [
        _beats(findings.compute_mean(dataset, model, metric), findings.compute_mean(dataset, rival, metric))
        for dataset, metric, model, rival in itertools.product(findings.list_datasets(), metrics, models, rivals)
    ]


def _claim_width(findings: Findings) -> list[Claim]:
    """Returns the claims of section 4.5, tested by the two metrics of Figure 3."""
    metrics = ("hr@10", "ndcg@10")
    panels = list(itertools.product(findings.list_datasets(), metrics))
    curves = {
        (*panel, model): [findings.compute_mean(panel[0], f"{model}@{width}", panel[1]) for width in WIDTHS]
        for panel in panels
        for model in SEQUENTIAL
    }

    def count_above(models: Iterable[str], rivals: Iterable[str]) -> str:
        pairs = [([f"{name}@{width}" for name in models], [f"{name}@{width}" for name in rivals]) for width in WIDTHS]
        return _count_cases(case for pair in pairs for case in _compare_each(findings, *pair, metrics))

    def count_falls(of_sparse: bool) -> str:
        return _count_cases(
            _falls_somewhere(curve) for place, curve in curves.items() if (place[0] in SPARSE) == of_sparse
        )

    converge = _count_cases(map(_flattens, curves.values()))
    plain = [model for model in SEQUENTIAL if model not in ATTENTIVE]
    unstable = (
        _turns_most(curves[*panel, "caser"], [curves[*panel, model] for model in SEQUENTIAL if model != "caser"])
        for panel in panels
    )
    return [
        ("Results converge as the width grows (here: they rise more from d = 16 to 64 than from 64 to 256).", converge),
        (
            "A larger d is not necessarily better, especially on Beauty and Steam (here: some smaller d beats 256).",
            f"on Beauty and Steam {count_falls(True)}, on MovieLens {count_falls(False)}",
        ),
        ("Caser is unstable (here: its curve changes direction more often than any other).", _count_cases(unstable)),
        ("SASRec and BERT4Rec are above the three other models at every width.", count_above(ATTENTIVE, plain)),
        ("BERT4Rec is above every other model at every width.", count_above(["bert4rec"], SEQUENTIAL[:-1])),
    ]


def _flattens(curve: Curve) -> bool | None:
    low, middle, high = (curve[WIDTHS.index(width)] for width in (16, 64, 256))
    return None if None in (low, middle, high) else middle - low > high - middle


def _falls_somewhere(curve: Curve) -> bool | None:
    """Returns whether a smaller width is better than the largest; None if that is open."""
    better = [_beats(value, curve[-1]) for value in curve[:-1]]
    return True if True in better else None if None in better else False


def _turns_most(curve: Curve, others: Iterable[Curve]) -> bool | None:
    first, *rest = map(_count_turns, (curve, *others))
    return None if first is None or None in rest else first > max(rest)


def _count_turns(curve: Curve) -> int | None:
    """Returns how often a curve goes from rising to falling or back."""
    if None in curve:
        return None
    steps = [second > first for first, second in itertools.pairwise(curve) if first != second]
    return sum(first != second for first, second in itertools.pairwise(steps))


def _claim_proportion(findings: Findings) -> list[Claim]:
    small, falling, bests = [], [], []
    for dataset in findings.list_datasets():
        curve = {rho: findings.compute_mean(dataset, str(rho), "ndcg@10") for rho in PROPORTIONS}
        small.append(_beats(curve[0.2], curve[0.1]))
        falling += [_beats(curve[low], curve[high]) for low, high in itertools.pairwise(PROPORTIONS) if low >= 0.6]
        if None not in curve.values():
            published = read_paper()["best_mask_proportion"][dataset]
            bests.append(f"{find_title(dataset)} {max(curve, key=curve.get)} (the paper's {published})")
    return [
        ("rho = .2 is better than .1.", _count_cases(small)),
        ("Above rho = .6 results fall as rho rises.", _count_cases(falling)),
        ("The best rho is .6 on Beauty, .4 on Steam and .2 on MovieLens.", ", ".join(bests) or "not run at every rho"),
    ]


BIDIRECTION = "BERT4Rec with one mask beats SASRec, so bidirection helps"
CLOZE = "More masks are better than one, so the Cloze task helps"


def _claim_models(findings: Findings) -> list[Claim]:
    """Returns the claims of section 4.4, tested by every metric of Table 2."""

    def count_above(models: Iterable[str], rivals: Iterable[str]) -> str:
        return _count_cases(_compare_each(findings, models, rivals))

    return [
        ("POP is the worst.", count_above((model for model in MODELS if model != "pop"), ["pop"])),
        ("Sequential models beat BPR-MF and NCF.", count_above(("fpmc", *SEQUENTIAL), ("bpr_mf", "ncf"))),
        ("Caser beats FPMC.", count_above(["caser"], ["fpmc"])),
        ("Caser is worse than GRU4Rec+ and SASRec.", count_above(("gru4rec_plus", "sasrec"), ["caser"])),
        ("SASRec beats GRU4Rec and GRU4Rec+.", count_above(["sasrec"], ("gru4rec", "gru4rec_plus"))),
        ("BERT4Rec is the best of all (here: of the paper's nine models).", _count_leads(findings)),
        (
            f"{BIDIRECTION} (here: the presets' widths and losses differ).",
            count_above(["bert4rec_one_mask"], ["sasrec"]),
        ),
        (f"{CLOZE} (here: at the preset's width).", count_above(["bert4rec"], ["bert4rec_one_mask"])),
    ]


def _count_leads(findings: Findings) -> str:
    """Returns a text: by how many metrics BERT4Rec leads the paper's other models, for each complete data set."""
    parts = []
    for dataset in findings.list_datasets():
        rows = [[findings.compute_mean(dataset, model, metric) for model in MODELS] for metric in METRICS]
        if not any(None in row for row in rows):
            led = sum(own_value > max(others) for *others, own_value in rows)
            parts.append(f"in {led} of {len(METRICS)} metrics on {find_title(dataset)}")
    return ", ".join(parts) or "not run with every model"


def _claim_bidirection(findings: Findings) -> list[Claim]:
    """Returns the claims of section 4.4, question 1."""
    metrics = TABLES[findings.name].metrics
    return [
        (f"{claim}.", _count_cases(_compare_each(findings, [variant], [rival], metrics)))
        for claim, variant, rival in ((BIDIRECTION, "one_mask", "sasrec"), (CLOZE, "bert4rec", "one_mask"))
    ]


def _claim_length(findings: Findings) -> list[Claim]:
    """Returns the claims of section 4.7."""
    bests, slower = [], []
    for dataset in findings.list_datasets():
        lengths = sorted(findings.list_variants(dataset), key=int)
        curve = {length: findings.compute_mean(dataset, length, "ndcg@10") for length in lengths}
        speeds = [findings.compute_mean(dataset, length, SAMPLES) for length in lengths]
        slower += [_beats(*pair) for pair in itertools.pairwise(speeds)]
        if None not in curve.values():
            bests.append(f"{find_title(dataset)} {max(curve, key=curve.get)}")
    return [
        ("The best N is 20 on Beauty and 200 on ML-1m.", ", ".join(bests) or "not run at every N"),
        ("Training gets slower as N grows (here: from each N to the next).", _count_cases(slower)),
    ]


def _claim_ablation(findings: Findings) -> list[Claim]:
    """Returns the claims of section 4.8, tested by shares: a variant's result divided by its data set's default."""

    def share(dataset: str, variant: str, default: str = "default") -> float | None:
        """Returns a variant's NDCG@10 divided by the default's; None if both are the same run or one is missing."""
        own_keys, default_keys = (
            {job.key for job, _ in findings.runs.get((dataset, name), ())} for name in (variant, default)
        )
        if own_keys & default_keys:
            return None
        value, whole = (findings.compute_mean(dataset, name, "ndcg@10") for name in (variant, default))
        return None if value is None or whole is None else value / whole

    names = findings.list_datasets()
    long, short = ([name for name in group if name in names] for group in (LONG, SPARSE))
    claims = [
        (
            "Without positions, results fall far on long histories (here: over 10 % on MovieLens).",
            _count_cases(_beats(LARGE_DROP, share(name, "no_positions")) for name in long),
        ),
        (
            "Long histories gain more from the feed-forward networks (here: MovieLens loses more without them).",
            _count_cases(
                _beats(share(few, "no_feed_forward"), share(many, "no_feed_forward")) for few in short for many in long
            ),
        ),
        (
            "Layer norm, residual connections and dropout matter most on small data (here: Beauty loses more).",
            _count_cases(
                _beats(share(name, variant), share("beauty", variant))
                for variant in ("no_layer_norm", "no_residual", "no_dropout")
                for name in names
                if name != "beauty"
            ),
        ),
        (
            "Three and four layers beat two, and two beat one.",
            _count_cases(
                case
                for name in names
                for case in (
                    *(_beats(share(name, variant), 1.0) for variant in ("layers_3", "layers_4")),
                    _beats(1.0, share(name, "layers_1")),
                )
            ),
        ),
        (
            "Long histories prefer more heads (here: four heads beat one on MovieLens).",
            _count_cases(_beats(share(name, "heads_4"), share(name, "heads_1")) for name in long),
        ),
        (
            "Beauty prefers fewer heads (here: one head beats eight).",
            _count_cases([_beats(share("beauty", "heads_1"), share("beauty", "heads_8"))]),
        ),
    ]
    if "ml-20m" in names:
        left = share("ml-20m", "layers_4_no_residual", "layers_4")
        answer = NOT_RUN if left is None else f"{left - 1:+.1%}"
        claims.append(("On ML-20m with L = 4, NDCG@10 falls by about 10 % without residual connections.", answer))
    return claims


CLAIMS: dict[str, Callable[[Findings], list[Claim]]] = {
    "table2": _claim_models,
    "table3": _claim_bidirection,
    "table4": _claim_length,
    "figure3": _claim_width,
    "figure4": _claim_proportion,
    "table5": _claim_ablation,
}
