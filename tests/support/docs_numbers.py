"""What the numbers in README.md, docs/results.md and docs/quality.md should be, by experiments/results."""

import re
from statistics import mean, median

from bert4rec_tf.config.paper import read_paper
from experiments.findings import Findings
from experiments.plan import Plan
from experiments.results import FINISHED, Results
from experiments.tables import DATASETS, TABLES
from support.paths import ROOT

RESULTS = ROOT / "experiments" / "results"
LINES = {key: line for key, line in Results(RESULTS).read().items() if line["status"] == FINISHED}
PLAN = Plan(DATASETS)
FINDINGS = {name: Findings(name, PLAN, LINES) for name in TABLES}
PLANNED = {job.key: job.run.dataset for job in PLAN.make_all_jobs(TABLES)}
BOTH = ("beauty", "ml-1m")


def get(dataset: str, model: str, protocol: str = "popular", metric: str = "ndcg@10", seed: int | None = None) -> float:
    """A metric of Table 2: the mean over seeds, or of one seed."""
    values = FINDINGS["table2"].list_values(dataset, model, metric, protocol)
    return mean(values) if seed is None else values[seed - 1]


def paper(dataset: str, model: str, metric: str = "ndcg@10", table: str = "table2") -> float:
    return read_paper()[table][dataset][model][metric]


def percent(first: float, second: float) -> float:
    """How far the first number is from the second, without the sign."""
    return 100 * abs(first / second - 1)


def beside_paper(dataset: str, model: str) -> float:
    return percent(get(dataset, model), paper(dataset, model))


def spread(dataset: str, model: str, protocol: str = "popular") -> float:
    values = FINDINGS["table2"].list_values(dataset, model, "ndcg@10", protocol)
    assert len(values) == 3
    return 100 * (max(values) - min(values)) / mean(values)


def minutes(dataset: str, model: str) -> list[float]:
    """Of each seed."""
    return [line["wall_seconds"] / 60 for line in FINDINGS["table2"].runs[dataset, model]]


def gigabytes(dataset: str, model: str) -> float:
    return median(line["peak_memory"] / 1e9 for line in FINDINGS["table2"].runs[dataset, model])


def of_run(key: str, protocol: str = "popular") -> float:
    return LINES[key]["test"][protocol]["ndcg@10"]


def of_seeds(dataset: str, model: str, protocol: str) -> list[float]:
    return [*(get(dataset, model, protocol, seed=seed) for seed in (1, 2, 3)), get(dataset, model, protocol)]


def corrected(dataset: str, model: str, protocol: str, metric: str = "ndcg@10") -> float:
    line = FINDINGS["table2"].runs[dataset, model][0]
    return line["popularity_correction"]["test"][protocol][metric]


def rho(proportion: float) -> float:
    return FINDINGS["figure4"].compute_mean("beauty", str(proportion), "ndcg@10")


def lengths(length: int) -> float:
    return FINDINGS["table4"].compute_mean("beauty", str(length), "ndcg@10")


SIXTEEN_THOUSAND = "9c8038d096e0"
ABOVE = {"beauty": ("bpr_mf", "fpmc", "gru4rec", "gru4rec_plus"), "ml-1m": ("bpr_mf", "ncf", "gru4rec", "gru4rec_plus")}


def ends(dataset: str) -> list[float]:
    above = [beside_paper(dataset, model) for model in ABOVE[dataset]]
    return [min(above), max(above)]


# A text is a number that no run of results.jsonl has: of a trial, whose command is beside it, or from elsewhere.
PROSE: dict[str, list[float | str]] = {
    "## Which model?": [
        *(median(minutes(dataset, "bert4rec_evidence")) for dataset in BOTH),
        *(median(minutes(dataset, "sasrec_best")) for dataset in BOTH),
        *[get("beauty", "item_transitions", "full"), *minutes("beauty", "item_transitions")],
        *[get("ml-1m", "item_transitions", "full"), *minutes("ml-1m", "item_transitions")],
        *(median(minutes(dataset, "bert4rec_best")) for dataset in BOTH),
        *(get("ml-1m", model, "uniform", "hr@10") for model in ("sasrec", "bert4rec")),
        *[".1909", ".0242", ".489", ".1618"],
        *(
            get(dataset, model, protocol)
            for model in ("bert4rec_evidence", "bert4rec_best")
            for dataset in BOTH
            for protocol in ("popular", "full")
        ),
    ],
    "## Read this first": [
        *(spread("beauty", model) for model in ("bert4rec_best", "sasrec_best")),
        *(spread("beauty", model, "full") for model in ("bert4rec_best", "sasrec_best")),
        *(spread("ml-1m", "bert4rec_best", protocol) for protocol in ("popular", "full")),
        "3",
        *[min(minutes("beauty", "sasrec_best")), max(minutes("beauty", "sasrec_best"))],
    ],
    "### Beauty": [
        paper("beauty", "default", table="table5"),
        ".1934",
        *[*minutes("beauty", "bert4rec"), gigabytes("beauty", "bert4rec")],
    ],
    "### Beauty, preset best": [
        *of_seeds("beauty", "bert4rec_best", "popular"),
        *of_seeds("beauty", "bert4rec_best", "full"),
        *(
            percent(corrected("beauty", "bert4rec_best", protocol), get("beauty", "bert4rec_best", protocol, seed=1))
            for protocol in ("popular", "full")
        ),
        *[median(minutes("beauty", "bert4rec_best")), gigabytes("beauty", "bert4rec_best")],
    ],
    "### MovieLens 1M": [
        paper("ml-1m", "default", table="table5"),
        ".4807",
        *[*minutes("ml-1m", "bert4rec"), gigabytes("ml-1m", "bert4rec")],
    ],
    "### MovieLens 1M, preset best": [
        *[".5057", of_run(SIXTEEN_THOUSAND)],
        *[of_run(SIXTEEN_THOUSAND), of_run(SIXTEEN_THOUSAND, "full")],
        *[".4515", ".1453", ".4761", ".4514"],
        *of_seeds("ml-1m", "bert4rec_best", "popular"),
        *of_seeds("ml-1m", "bert4rec_best", "full"),
        *[median(minutes("ml-1m", "bert4rec_best")), gigabytes("ml-1m", "bert4rec_best")],
    ],
    "### Where we are below the paper": [
        *[beside_paper("beauty", "pop"), ".0326", paper("beauty", "pop"), ".0641", ".0004"],
        *[beside_paper("beauty", "ncf"), *(beside_paper(dataset, "caser") for dataset in BOTH)],
        *[".0629", ".0621"],
    ],
    "### Negatives drawn by popularity": [
        *[percent(0.2084, paper("ml-1m", "bpr_mf")), ".2084"],
        *[beside_paper("ml-1m", "bpr_mf"), get("ml-1m", "bpr_mf"), ".1613"],
    ],
    "### Where we are above the paper": [
        *[*ends("beauty"), *ends("ml-1m")],
        *[".1047", ".1606", ".1155", ".1376", paper("beauty", "gru4rec")],
        *[".0594", ".1155", ".2844", ".2233"],
        *(get("beauty", model, "uniform") for model in ("gru4rec", "pop")),
    ],
    "### The ranking depends on the candidates": [
        *(get(dataset, model, "uniform") for dataset in BOTH for model in ("gru4rec_plus", "bert4rec")),
        *(get("beauty", model, "uniform", "hr@10") for model in ("pop", "gru4rec", "gru4rec_plus", "ncf", "caser")),
        *(get("ml-1m", model, "full") for model in ("bert4rec", "sasrec", "gru4rec_plus")),
        *(get("beauty", model, "full") for model in ("fpmc", "bert4rec")),
    ],
    "## Counting instead of training: item_transitions": [
        FINDINGS["table2"].runs[dataset, "item_transitions"][0]["transitions"]["ndcg@10"] for dataset in BOTH
    ],
    "## Ablations and mask proportion (Table 5, Figure 4)": [rho(0.5), rho(0.6)],
    "## The length N (Table 4)": [
        *[
            percent(lengths(20), lengths(50)),
            percent(*(read_paper()["table4"]["beauty"][str(length)]["ndcg@10"] for length in (20, 50))),
        ],
        *["4", "29", "4"],  # of the lengths of the histories
    ],
}
"""Heading of docs/results.md -> the numbers of its sentences, in their order."""


OF_QUALITY = [
    *(get("beauty", "sasrec_softmax", protocol) for protocol in ("popular", "uniform", "full")),
    *(
        get(name, variant, "full")
        for name in ("ml-1m", "beauty")
        for variant in ("item_transitions", "bert4rec_evidence")
    ),
    *[get(name, variant) for name in ("ml-1m", "beauty") for variant in ("bert4rec_evidence", "bert4rec_best")],
]
"""The numbers of docs/quality.md with a mark, in their order."""


def shown(value: float) -> str:
    return f"{value:.4f}".removeprefix("0")


def beside(value: float, published: float) -> str:
    return f"{shown(value)} ({shown(published)})"


def change(value: float, base: float) -> str:
    return f"{value / base - 1:+.0%}".replace("%", " %")


def make_answer() -> list[list[str]]:
    """The report's first table."""
    lines = (RESULTS / "report.md").read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = [line.strip("|").split("|") for line in lines[start + 2 : lines.index("", start)]]
    return [[re.sub(r"\b0\.(?=\d{4})", ".", cell.strip().strip("*")) for cell in row] for row in rows]


def make_counts() -> list[list[str]]:
    rows = []
    for name, table in TABLES.items():
        keys = {job.key for job in PLAN.make_all_jobs([name])}
        if table.variants:
            label = f"{name[:-1].capitalize()} {name[-1]}"
            rows.append([label, f"{len(keys & LINES.keys())} of {len(keys)}"])
    return rows


def make_bert4rec(dataset: str) -> list[list[str]]:
    line = FINDINGS["table2"].runs[dataset, "bert4rec"][0]
    sources = [
        *(line[source]["popular"] for source in ("test", "pop", "random")),
        read_paper()["table2"][dataset]["bert4rec"],
    ]
    metrics = ("hr@1", "hr@5", "hr@10", "ndcg@5", "ndcg@10", "mrr")
    return [[metric.upper(), *(shown(source[metric]) for source in sources)] for metric in metrics]


OF_BEST = {
    "HR@10 among 100 popular": ("popular", "hr@10"),
    "NDCG@10 among 100 popular": ("popular", "ndcg@10"),
    "NDCG@10 among 100 uniform": ("uniform", "ndcg@10"),
    "HR@10 among all": ("full", "hr@10"),
    "NDCG@10 among all": ("full", "ndcg@10"),
}


def make_best(dataset: str) -> list[list[str]]:
    rows = []
    for title, (protocol, metric) in OF_BEST.items():
        second = (
            corrected(dataset, "bert4rec_best", protocol, metric)
            if dataset == "beauty"
            else get(dataset, "bert4rec", protocol, metric)
        )
        values = (
            get(dataset, "bert4rec_best", protocol, metric, 1),
            second,
            get(dataset, "item_transitions", protocol, metric),
        )
        rows.append([title, *map(shown, values)])
    return rows


def make_nine() -> list[list[str]]:
    columns = [(dataset, metric) for dataset in BOTH for metric in ("hr@10", "ndcg@10")]
    return [
        [
            variant.title,
            *(beside(get(dataset, model, metric=metric), paper(dataset, model, metric)) for dataset, metric in columns),
        ]
        for model, variant in list(TABLES["table2"].variants.items())[:9]
    ]


def make_counting() -> list[list[str]]:
    titles = {"100 popular items": "popular", "100 uniform items": "uniform", "all items": "full"}

    def cell(dataset: str, protocol: str) -> str:
        return beside(*(get(dataset, "item_transitions", protocol, metric) for metric in ("ndcg@10", "hr@10")))

    return [[title, *(cell(dataset, protocol) for dataset in BOTH)] for title, protocol in titles.items()]


def make_bidirection() -> list[list[str]]:
    rows = {
        "SASRec": ("sasrec", "sasrec"),
        "BERT4Rec, one mask in each example": ("bert4rec_one_mask", "one_mask"),
        "BERT4Rec": ("bert4rec", "bert4rec"),
    }
    return [
        [
            title,
            *(
                beside(get("beauty", ours, metric=metric), paper("beauty", theirs, metric, "table3"))
                for metric in ("hr@10", "ndcg@10")
            ),
        ]
        for title, (ours, theirs) in rows.items()
    ]


OF_ABLATIONS = {
    "no_positions": "without positions",
    "no_feed_forward": "without feed-forward networks",
    "no_layer_norm": "without layer norms",
    "no_residual": "without residual connections",
    "no_dropout": "without dropout",
    "layers_1": "1 layer",
    "layers_3": "3 layers",
    "layers_4": "4 layers",
    "heads_1": "1 head",
    "heads_4": "4 heads",
    "heads_8": "8 heads",
}


def make_ablations(dataset: str, variants: list[str]) -> list[list[str]]:
    """Each row has the result with the most steps, its change and the paper's, and (Beauty) that of a quarter."""
    quarter = Plan((dataset,), budget=0.25).make_jobs("table5")

    def make_row(title: str, variant: str) -> list[str]:
        values = [FINDINGS["table5"].compute_mean(dataset, one, "ndcg@10") for one in (variant, "default")]
        published = [paper(dataset, one, table="table5") for one in (variant, "default")]
        changes = ["", ""] if variant == "default" else [change(*values), change(*published)]
        few = [shown(of_run(quarter[dataset, variant][0].key))] if dataset == "beauty" else []
        return [title, shown(values[0]), *changes, *few]

    return [make_row("L = 2, h = 2", "default"), *(make_row(OF_ABLATIONS[one], one) for one in variants)]


def make_lengths() -> list[list[str]]:
    published = read_paper()["table4"]["beauty"]
    return [
        [
            length,
            *(
                beside(FINDINGS["table4"].compute_mean("beauty", length, metric), published[length][metric])
                for metric in ("hr@10", "ndcg@10")
            ),
        ]
        for length in ("20", "50")
    ]


TABLES_OF_RESULTS = {
    "## Which model?": make_answer(),
    "## What is not known": make_counts(),
    "### Beauty": make_bert4rec("beauty"),
    "### Beauty, preset best": make_best("beauty"),
    "### MovieLens 1M": make_bert4rec("ml-1m"),
    "### MovieLens 1M, preset best": make_best("ml-1m"),
    "## The paper's nine models": make_nine(),
    "## Counting instead of training: item_transitions": make_counting(),
    "## Bidirection and the Cloze task (Table 3)": make_bidirection(),
    "## Ablations and mask proportion (Table 5, Figure 4)": [
        *make_ablations("beauty", list(OF_ABLATIONS)),
        *make_ablations(
            "ml-1m", ["no_positions", "no_feed_forward", "no_layer_norm", "layers_1", "layers_3", "heads_4"]
        ),
    ],
    "## The length N (Table 4)": make_lengths(),
}
"""Heading of docs/results.md -> the rows of its tables without their headers. Cells behind a row's last are words."""
