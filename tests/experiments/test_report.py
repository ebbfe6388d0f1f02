"""The report from invented results: every number in it is worked out here by hand."""

import re

import numpy as np
import pytest
from support.invented_results import FILE, findings, line_of, rows_after, rows_of, text_of

from bert4rec_tf.evaluation.metrics import LIST_METRICS
from experiments import answer, report
from experiments.findings import Findings
from experiments.plan import Plan
from experiments.report import make_sections, render
from experiments.results import Results
from experiments.sweep import Sweep
from experiments.tables import DATASETS, MODELS, PROPORTIONS, TABLES, WIDTHS

NOT_OF_PAPER = len(TABLES["table2"].variants) - len(MODELS)
"""Columns of Table 2 that the paper does not have."""

TABLE2 = dict(zip(MODELS, (0.01, 0.10, 0.11, 0.12, 0.13, 0.16, 0.15, 0.16, 0.20)))


def test_table_2_beside_the_paper():
    text, _ = text_of("table2", findings("table2", TABLE2))
    ours, paper, difference_ = rows_after(text, "NDCG@10")
    assert ours == [
        *("0.0100", "0.1000", "0.1100", "0.1200", "0.1300", "<u>0.1600</u>", "0.1500", "<u>0.1600</u>", "**0.2000**"),
        *["not run"] * NOT_OF_PAPER,
        "+25.00%",
    ]
    assert paper[6:] == ["0.1360", "<u>0.1633</u>", "**0.1862**", *[""] * NOT_OF_PAPER, "+14.02%"]
    assert difference_[6:] == ["+0.0140", "-0.0033", "+0.0138", *[""] * NOT_OF_PAPER, ""]
    assert difference_[0] == "-0.0249"
    assert "HR@10 +25.00% on 1 (paper: +7.24% on 4)" in text
    assert "Beauty 0.2000 (paper 0.1832, difference +0.0168)" in text, "d = 64 belongs beside Table 5 too"
    assert [row[0] for row in rows_of(text)].count("HR@10, all unseen items") == 1


def test_missing_cells_say_not_run():
    values = {model: value for model, value in TABLE2.items() if model != "caser"}
    ours, _, difference_ = rows_after(text_of("table2", findings("table2", values))[0], "MRR")
    assert ours[6] == "not run" and ours[-1] == "not run", "without one of the others there is no gain to speak of"
    assert difference_[6] == ""
    everything = {name: Findings(name, Plan(DATASETS), {}) for name in TABLES}
    text = render("md", make_sections(everything, {}, {}, {}))
    assert "No picture" not in text and "No run is finished." in text
    assert text.count("Beauty, Steam, ML-1m, ML-20m: not run.") == 4


def test_seeds_are_averaged_with_their_deviation():
    plan = Plan(("beauty",), seeds=(1, 2, 3))
    jobs = plan.make_jobs("table2")["beauty", "sasrec"]
    lines = {job.key: line_of(job, value) for job, value in zip(jobs, (0.14, 0.16, 0.18))}
    ours, _, _ = rows_after(text_of("table2", Findings("table2", Plan(("beauty",)), lines))[0], "MRR")
    assert ours[7] == "0.1600 ± 0.0200", "finished seeds count, asked for or not"


def test_table_5_is_marked_as_in_the_paper():
    values = {
        "default": 0.2,
        "no_positions": 0.179,
        "layers_1": 0.19,
        "layers_3": 0.21,
        "heads_1": 0.19,
        "heads_4": 0.2,
        "heads_8": 0.181,
    }
    text, _ = text_of("table5", findings("table5", values))
    cells = {row[0]: row[1] for row in rows_of(text) if not row[0].startswith("-")}
    assert cells["L = 2, h = 2"] == "0.2000"
    assert cells["w/o PE"] == "0.1790 ↓"
    assert cells["3 layers"] == "**0.2100**"
    assert cells["4 heads"] == "0.2000" and cells["8 heads"] == "0.1810"
    assert cells["4 layers"] == "not run"
    assert rows_after(text, "w/o LN")[1] == ["0.1642 ↓"]
    assert rows_after(text, "w/o PE")[2] == ["+0.0049"]
    assert "4 layers w/o RC" not in cells, "the paper has it for ML-20m alone"
    said = claims(text)
    assert said["Three and four layers beat two, and two beat one."] == "true in 2 of 2 cases, 1 not run"
    assert said["Beauty prefers fewer heads"] == "true in 1 of 1 cases"
    assert said["Long histories prefer more heads"] == "not run", "it is about MovieLens"


def test_a_variant_that_is_the_same_run_as_the_default_decides_nothing():
    """ML-1m's preset has no dropout to leave out, so only Beauty could lose by that."""
    jobs = Plan(DATASETS).make_jobs("table5")
    values = {("beauty", "default"): 0.2, ("beauty", "no_dropout"): 0.1, ("ml-1m", "default"): 0.4}
    lines = {jobs[place][0].key: line_of(jobs[place][0], value) for place, value in values.items()}
    text, _ = text_of("table5", Findings("table5", Plan(DATASETS), lines))
    assert "On ML-1m the default has no dropout, so “w/o dropout” is the same run." in text
    assert claims(text)["Layer norm, residual connections and dropout matter most on small data"] == "not run"
    assert rows_after(text, "w/o dropout")[0] == ["0.1000 ↓", "0.4000"]


def test_what_was_measured_with_a_correction_and_of_the_recommended_items_is_shown():
    job = Plan(("beauty",)).make_jobs("table2")["beauty", "sasrec"][0]
    lists = dict.fromkeys(LIST_METRICS, 0.25)
    test = {protocol: {**values, **lists} for protocol, values in line_of(job, 0.2)["test"].items()}
    correction = {"alpha": 0.5, "test": {protocol: {"ndcg@10": 0.3} for protocol in test}}
    line = line_of(job, test=test, popularity_correction=correction)
    text, _ = text_of("table2", findings("table2", {"pop": 0.1}, others=[line]))
    assert "Correction for popularity: items are ranked by score - alpha log(count + 1)" in text
    for label, plain, shown in (
        ("alpha", "not run", "0.5"),
        ("100 uniform, alpha 0", "<u>0.1000</u>", "**0.2000**"),
        ("100 uniform, alpha as above", "not run", "0.3000"),
        ("coverage@10, all unseen items", "not run", "0.2500"),
    ):
        row = rows_after(text, label)[0]
        assert (row[0], row[7]) == (plain, shown), label
    assert "what is recommended" not in text_of("table2", findings("table2", {"pop": 0.1}))[0]


def claims(text):
    return dict(re.findall(r"The paper says: (.*?) (?:\(here.*?\)\. )?Here: (.*)\.", text))


def test_the_papers_statements_about_table_2_are_counted():
    """By hand: of 6 metrics each, 8 models beat POP; FPMC .12, GRU4Rec .13 and Caser .15 beat both of .10 and .11."""
    said = claims(text_of("table2", findings("table2", {**TABLE2, "bert4rec_one_mask": 0.18}))[0])
    assert said == {
        "POP is the worst.": "true in 48 of 48 cases",
        "Sequential models beat BPR-MF and NCF.": "true in 72 of 72 cases",
        "Caser beats FPMC.": "true in 6 of 6 cases",
        "Caser is worse than GRU4Rec+ and SASRec.": "true in 12 of 12 cases",
        "SASRec beats GRU4Rec and GRU4Rec+.": "true in 6 of 12 cases",
        "BERT4Rec is the best of all": "in 6 of 6 metrics on Beauty",
        "BERT4Rec with one mask beats SASRec, so bidirection helps": "true in 6 of 6 cases",
        "More masks are better than one, so the Cloze task helps": "true in 6 of 6 cases",
    }, "SASRec and GRU4Rec+ are equal"


def test_the_papers_statements_about_widths_are_counted():
    """By hand, for both metrics: SASRec falls at 256, Caser turns three times, and both rise more after 64."""
    curves = {
        "gru4rec": (0.01, 0.02, 0.03, 0.035, 0.04),
        "gru4rec_plus": (0.02, 0.03, 0.05, 0.055, 0.06),
        "caser": (0.05, 0.03, 0.06, 0.02, 0.09),
        "sasrec": (0.1, 0.12, 0.15, 0.31, 0.3),
        "bert4rec": (0.2, 0.3, 0.4, 0.41, 0.42),
    }
    values = {f"{model}@{width}": value for model, curve in curves.items() for width, value in zip(WIDTHS, curve)}
    assert list(claims(text_of("figure3", findings("figure3", values))[0]).values()) == [
        "true in 6 of 10 cases",
        "on Beauty and Steam true in 2 of 10 cases, on MovieLens not run",
        "true in 2 of 2 cases",
        "true in 60 of 60 cases",
        "true in 40 of 40 cases",
    ]


def test_the_papers_statements_about_lengths_and_mask_proportions_are_counted():
    jobs = Plan(("beauty",)).make_jobs("table4")
    lines = {}
    for length, value, seconds in (
        ("10", 0.1, 1.0),
        ("20", 0.3, 2.0),
        ("30", 0.2, 4.0),
        ("40", 0.1, 3.0),
        ("50", 0, 5),
    ):
        (job,) = jobs["beauty", length]
        lines[job.key] = line_of(job, value, retrain={"steps": 100, "seconds": seconds, "best_step": 100})
    text, _ = text_of("table4", Findings("table4", Plan(("beauty",)), lines))
    assert list(claims(text).values()) == ["Beauty 20", "true in 3 of 4 cases"]
    speeds, published, _ = rows_after(text, "samples/s")
    assert speeds == ["6,400", "3,200", "1,600", "2,133", "1,280"] and published[0] == "5,504", "speed is not marked"
    values = dict(zip(map(str, PROPORTIONS), (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.55, 0.56, 0.3)))
    text, _ = text_of("figure4", findings("figure4", values))
    said = ["true in 1 of 1 cases", "true in 2 of 3 cases", "Beauty 0.6 (the paper's 0.6)"]
    assert list(claims(text).values()) == said and rows_after(text, "rho = 0.6")[0] == ["**0.6000**", "**0.6000**"]


def test_the_answer_is_the_first_thing_in_the_report():
    """NDCG@10 .2 and .16 of 40,226 users: no ranks could make this chance. For .201 and .2 it depends on the ranks."""
    seeds = ({**TABLE2, "bert4rec": 0.199}, {**TABLE2, "bert4rec": 0.201})
    text, page = text_of("table2", of_seeds(*seeds))
    assert text.index("## Which model ranks best?") < text.index("## About these results") and "Which model" in page
    rows = {row[0]: row[1:] for row in rows_of(text) if row[0].startswith("Beauty, ")}
    assert rows["Beauty, 100 popular"][2] in ("GRU4Rec+", "SASRec"), "these are equal"
    assert rows["Beauty, 100 popular"][:2] == ["**BERT4Rec**", "0.2000"]
    assert rows["Beauty, 100 popular"][3:] == ["0.1600", "+25.0%", "unknown", "yes, by a bound"]
    near = [{**one, "pop": 0.201} for one in seeds]
    rows = {row[0]: row[1:] for row in rows_of(text_of("table2", of_seeds(*near))[0])}
    assert rows["Beauty, all unseen items"] == [
        *("**POP**", "0.2010", "BERT4Rec", "0.2000", "+0.5%", "unknown", "open"),
    ]
    alone, _ = text_of("table2", findings("table2", {"pop": 0.1}))
    assert "Beauty, 100 popular" not in alone, "one model is not compared"


def of_seeds(*values):
    """Findings of Table 2 on Beauty with seed 1, 2, ...: each with its values, and counting models with one seed."""
    plan = Plan(("beauty",), seeds=range(1, len(values) + 1))
    jobs = plan.make_jobs("table2")
    counted = {"steps": 0, "seconds": 0.0, "best_step": 0}
    lines = [
        line_of(jobs["beauty", model][seed], value, **({"retrain": counted} if model == "pop" else {}))
        for seed, one in enumerate(values)
        for model, value in one.items()
        if seed == 0 or model != "pop"
    ]
    return Findings("table2", Plan(("beauty",)), {line["key"]: line for line in lines})


def verdicts_of(found, comparisons=()):
    grid = answer.make_grid(found, dict(comparisons))
    return {row[0].text.removeprefix("Beauty, "): (row[-2].text, row[-1].text) for row in grid.rows}


def test_a_lead_of_a_single_seed_gets_no_verdict():
    """However large the lead is: of BERT4Rec's one seed over SASRec's two, then the other way round."""
    one, two = {"bert4rec": 0.9}, {"sasrec": 0.1}
    for seeds in ((one | two, two), (one | two, one)):
        assert set(verdicts_of(of_seeds(*seeds)).values()) == {("unknown", answer.ONE_SEED)}
    assert set(verdicts_of(of_seeds(one | two, one | two)).values()) == {("unknown", "yes, by a bound")}
    assert set(verdicts_of(of_seeds({"pop": 0.1} | one, one)).values()) == {("unknown", "yes, by a bound")}, "counts"


def test_the_verdict_does_not_depend_on_the_seed_that_is_paired():
    """The users of one seed of each give the width alone: the same lead of the means, whichever seeds were compared."""
    found = of_seeds({"bert4rec": 0.21, "sasrec": 0.19}, {"bert4rec": 0.19, "sasrec": 0.198})
    lines = found.runs["beauty", "bert4rec"], found.runs["beauty", "sasrec"]
    first, second = (some[0]["test"]["popular"]["ndcg@10"] for some in lines)
    name = found.name_pair("beauty", "sasrec", "bert4rec")
    known = {"mean": first - second, "low": first - second - 0.002, "high": first - second + 0.002}
    comparison = {name: {protocol: {"ndcg@10": known} for protocol in ("popular", "uniform", "full")}}
    ((interval, verdict),) = set(verdicts_of(found, comparison).values())
    low, high = map(float, interval.split(" to "))
    assert verdict == "no" and (low + high) / 2 == pytest.approx(0.2 - 0.194, abs=1e-4)
    assert known["low"] > 0, "the pair alone would have called this lead beyond chance"


def test_the_first_sentences_count_what_is_known():
    """Of the runs of Beauty's Table 2 two are finished; a second seed is shown beside them. Steam has nothing."""
    plan = Plan(("beauty", "steam"), seeds=(1, 2))
    jobs = plan.make_jobs("table2")
    done = [jobs["beauty", "pop"][0], *jobs["beauty", "sasrec"]]
    found = Findings("table2", Plan(("beauty", "steam")), {job.key: line_of(job) for job in done})
    text, _ = text_of("table2", found)
    known, missing = text.split("## Which model ranks best?\n\n")[1].split("\n\n")[:2]
    every = len(TABLE2) * 2 + NOT_OF_PAPER
    assert f"2 of {every} runs" in known and f"Beauty 2 of {every - 9}; Steam 0 of 9" in known
    assert f"Table 2 2 of {every}. 1 more" in known and "finished, one for each cell" in known
    text, _ = text_of("table2", Findings("table2", plan, {job.key: line_of(job) for job in done}))
    assert "finished, 2 seeds for each cell" in text
    assert missing.startswith(f"Not known: {every - 2} runs are missing.") and missing.endswith(
        "Nothing was run on Steam."
    )


@pytest.mark.parametrize("users", (50, 5_000))
def test_a_lead_beyond_the_bound_is_beyond_chance_in_a_paired_test_too(users):
    """Ranks of two models that agree about which users are easy, many times; the paired test is written out here."""
    random = np.random.default_rng(3)
    certain = 0
    for _ in range(200):
        easy = random.random(users)
        both = [
            np.floor(40 * (0.7 * easy + 0.3 * random.random(users)) * scale) for scale in (1.0, random.uniform(1, 2))
        ]
        values = [np.where(ranks < 10, 1 / np.log2(ranks + 2), 0.0) for ranks in both]
        best, second = sorted((float(value.mean()) for value in values), reverse=True)
        difference = values[0] - values[1]
        paired = abs(difference.mean()) / (difference.std(ddof=1) / users**0.5)
        low, _ = answer.compute_interval(answer.bound_variance([best], [second], users), [best], [second])
        exceeds = low > 0
        certain += exceeds
        assert paired > 2 or not exceeds
    assert (certain > 50) == (users > 50), "the rule must be able to say yes"


def test_the_data_file_is_named():
    found = findings("table2", TABLE2)
    assert (
        f"Beauty: beauty.txt, SHA-256 of its content {FILE['sha256']}, the authors' own file."
        in text_of("table2", found)[0]
    )
    other = {**FILE, "name": "ml-1m.txt.gz", "as_published": False}
    job = Plan(("ml-1m",)).make_jobs("table2")["ml-1m", "pop"][0]
    found = Findings("table2", Plan(("ml-1m",)), {job.key: line_of(job, data_file=other)})
    assert (
        "not the file that the authors published: actions at equal times may be in another order"
        in (text_of("table2", found)[0])
    )


def test_a_run_on_another_data_file_is_left_out():
    other = {**FILE, "sha256": "0" * 64, "as_published": False}
    job = Plan(("beauty",)).make_jobs("table2")["beauty", "caser"][0]
    values = {model: value for model, value in TABLE2.items() if model != "caser"}
    text, _ = text_of("table2", findings("table2", values, others=[line_of(job, 0.15, data_file=other)]))
    ours, _, _ = rows_after(text, "NDCG@10")
    assert ours[6] == "not run" and ours[-1] == "not run"
    assert f"Left out, as they used another data file than most runs on Beauty: {job.key} (caser). The other" in text


@pytest.mark.parametrize(("num_whole", "budget"), [(2, 0.25), (3, 1.0)])
def test_a_table_shows_the_budget_that_fills_most_cells(num_whole, budget):
    variants = list(TABLES["figure4"].variants)[:3]
    lines = [
        {**line_of(Plan(("beauty",), budget=share).make_jobs("figure4")["beauty", variant][0], share), "budget": share}
        for share, number in ((1.0, num_whole), (0.25, 3))
        for variant in variants[:number]
    ]
    figure = Findings("figure4", Plan(("beauty",)), {line["key"]: line for line in lines})
    assert figure.budgets == {"beauty": budget}
    assert [figure.list_values("beauty", variant, "ndcg@10") for variant in variants] == [[budget]] * 3
    assert figure.left_out == {(1.25 - budget, "beauty"): num_whole if budget < 1 else 3}


@pytest.mark.parametrize(("preset", "name"), [("fast", "report"), ("released", "report-released")])
def test_the_report_of_another_preset_stands_beside_the_usual_one(tmp_path, preset, name):
    plan = Plan(("beauty",), preset)
    job = plan.make_jobs("table3")["beauty", "bert4rec"][0]
    found = Findings("table3", plan, {job.key: line_of(job)})
    paths = report.write({"table3": found}, Sweep(Results(tmp_path), tmp_path / "work"))
    assert [path.name for path in paths] == [f"{name}.md", f"{name}.html"]
    assert ("has the settings of the preset released" in paths[0].read_text()) == (preset == "released")


def test_the_report_names_failed_runs():
    plan = Plan(("beauty",))
    job = plan.make_jobs("table2")["beauty", "ncf"][0]
    line = {"key": job.key, "run": job.run.to_dict(), "budget": 1.0, "status": "failed", "error": "<b>no luck</b>"}
    text, page = text_of("table2", Findings("table2", plan, {job.key: line}))
    assert f"Failed: ncf on beauty, run {job.key} (<b>no luck</b>)." in text
    assert "&lt;b&gt;no luck&lt;/b&gt;" in page and "<b>no luck" not in page
    runs = len(MODELS) + NOT_OF_PAPER
    assert f"{runs} (finished: 0, failed: 1, stopped: 0, missing: {runs - 1})." in text
    assert f"Known: 0 of {runs} runs" in text


def test_the_page_says_the_same_as_the_markdown():
    text, page = text_of("table2", findings("table2", TABLE2))
    cells = [re.sub(r"</?[a-z]+>", "", cell) for cell in re.findall(r"<td>(.*?)</td>", page)]
    plain = [re.sub(r"\*\*|</?u>", "", cell) for row in rows_of(text) if row[0] for cell in row]
    assert [cell for cell in cells if cell in plain] == cells and "<b>0.2000</b>" in page and "<u>0.1600</u>" in page
