"""The report from invented results: every number in it is worked out here by hand."""

import dataclasses
import re

import numpy as np
import pytest
from support.invented_results import FILE, findings, line_of, rows_after, rows_of, text_of

from bert4rec_tf.config import presets
from bert4rec_tf.evaluation.metrics import LIST_METRICS, POPULAR, PROTOCOLS
from experiments import answer
from experiments.findings import Findings
from experiments.plan import Plan
from experiments.report import Report, render
from experiments.tables import DATASETS, MODELS, TABLES

TABLE2 = dict(zip(MODELS, (0.01, 0.10, 0.11, 0.12, 0.13, 0.16, 0.15, 0.16, 0.20)))


def test_table_2_beside_the_paper():
    text, _ = text_of("table2", findings("table2", TABLE2))
    ours, paper, difference_ = rows_after(text, "NDCG@10")
    assert ours == [
        *("0.0100", "0.1000", "0.1100", "0.1200", "0.1300", "<u>0.1600</u>", "0.1500", "<u>0.1600</u>", "**0.2000**"),
        *["not run"] * 5,
        "+25.00%",
    ]
    assert paper[6:] == ["0.1360", "<u>0.1633</u>", "**0.1862**", "", "", "", "", "", "+14.02%"]
    assert difference_[6:] == ["+0.0140", "-0.0033", "+0.0138", "", "", "", "", "", ""]
    assert difference_[0] == "-0.0249"
    assert "HR@10 +25.00% on 1 (paper: +7.24% on 4)" in text
    assert "Beauty 0.2000 (paper 0.1832, difference +0.0168)" in text, "d = 64 belongs beside Table 5 too"
    assert [row[0] for row in rows_of(text)].count("HR@10, all unseen items") == 1


def test_table_2_has_a_model_that_the_paper_does_not_have():
    text, html = text_of("table2", findings("table2", {**TABLE2, "item_transitions": 0.18}))
    assert "item_transitions (not in the paper)" in text and "item_transitions (not in the paper)" in html
    ours, paper, difference_ = rows_after(text, "HR@10")
    assert ours[8:10] == ["**0.2000**", "<u>0.1800</u>"] and ours[-1] == "+25.00%", (
        "the gain is over the paper's models"
    )
    assert paper[9] == difference_[9] == ""
    elsewhere, _ = text_of("table2", findings("table2", TABLE2, Plan(("steam",))))
    assert "item_transitions" not in elsewhere and rows_after(elsewhere, "HR@10")[0][-1] == "+25.00%"


def test_the_correction_for_popularity_stands_beside_the_plain_ranking():
    found = findings("table2", {"pop": 0.1, "bert4rec": 0.4})
    assert "Correction for popularity" not in text_of("table2", found)[0]
    metrics = {protocol: {"ndcg@10": value} for protocol, value in zip(PROTOCOLS, (0.6, 0.3, 0.2))}
    correction = {"popularity_correction": {"alpha": 0.7, "test": metrics}}
    lines = {
        key: {**line, **(correction if line["run"]["model"] == "bert4rec" else {})} for key, line in found.lines.items()
    }
    text, page = text_of("table2", Findings("table2", found.plan, lines))
    assert "Correction for popularity" in text and "Correction for popularity" in page
    rows = {row[0]: row[1:] for row in rows_of(text) if row[0] == "alpha" or ", alpha" in row[0]}
    ours = list(TABLES["table2"].variants).index("bert4rec")
    assert [rows["alpha"][ours], rows["alpha"][0]] == ["0.7", "not run"]
    assert [rows[f"{title}, alpha as above"][ours] for title in ("100 popular", "100 uniform", "all unseen items")] == [
        "0.6000",
        "0.3000",
        "0.2000",
    ]
    assert rows["100 popular, alpha 0"][ours] == "**0.4000**"


def test_what_is_not_there_is_not_run():
    values = {model: value for model, value in TABLE2.items() if model != "caser"}
    ours, _, difference_ = rows_after(text_of("table2", findings("table2", values))[0], "MRR")
    assert ours[6] == "not run" and ours[-1] == "not run", "without one of the others there is no gain to speak of"
    assert difference_[6] == ""
    everything = Report({name: Findings(name, Plan(DATASETS), {}) for name in TABLES})
    text = render("md", everything.make_sections())
    assert text.count("No picture: not run.") == 3 and "No run is finished." in text
    assert text.count("Beauty, Steam, ML-1m, ML-20m: not run.") == 4


def test_what_is_recommended_stands_in_the_report_where_it_was_measured():
    jobs = Plan(("beauty",)).jobs("table2")
    plain, newer = line_of(jobs["beauty", "pop"][0], 0.2), line_of(jobs["beauty", "ncf"][0], 0.3)
    known = {line["key"]: line for line in (plain, newer)}
    assert "what is recommended" not in text_of("table2", Findings("table2", Plan(("beauty",)), known))[0]
    for protocol, value in (("popular", 0.25), ("uniform", 0.5), ("full", 2.75)):
        newer["test"][protocol] |= dict.fromkeys(LIST_METRICS, value)
    text = text_of("table2", Findings("table2", Plan(("beauty",)), known))[0]
    header, *rows = rows_of(text[text.index("Beauty, what is recommended") :])[:10]
    for row, (protocol, value) in zip(
        rows[::3], (("100 popular", 0.25), ("100 uniform", 0.5), ("all unseen items", 2.75))
    ):
        assert row[0] == f"coverage@10, {protocol}"
        cells = dict(zip(header[1:], row[1:]))
        assert cells.pop("NCF") == f"{value:.4f}" and set(cells.values()) == {"not run"}


def test_every_cell_without_a_run_says_so():
    """BERT4Rec's own run stands in six of the tables and figures; nothing else is there."""
    job = Plan(("beauty",)).jobs("table2")["beauty", "bert4rec"][0]
    found = {name: Findings(name, Plan(DATASETS), {job.key: line_of(job, 0.2)}, {job.key}) for name in TABLES}
    text = render("md", Report(found).make_sections())
    ours = [row for row in rows_of(text) if row[0] and row[0] not in (job.key, "run") and row[0][0] != "-"]
    assert len(ours) == 4 + (6 + 4) + 3 + 12 + 10 + 9, "Tables 1, 2 (with other protocols), 4, 5, Figures 3 and 4"
    known = {"L = 2, h = 2", "rho = 0.6"}
    for row in ours:
        cells = [re.sub(r"\*\*|</?u>", "", cell) for cell in row[1:]]
        assert set(cells) - {"not run"} <= {"0.2000", "768,000"}, row
        assert ("not run" in cells) != (row[0] in known), row


def test_seeds_are_averaged_with_their_deviation():
    plan = Plan(("beauty",), seeds=(1, 2, 3))
    jobs = plan.jobs("table2")["beauty", "sasrec"]
    lines = {job.key: line_of(job, value) for job, value in zip(jobs, (0.14, 0.16, 0.18))}
    ours, _, _ = rows_after(text_of("table2", Findings("table2", Plan(("beauty",)), lines))[0], "MRR")
    assert ours[7] == "0.1600 ± 0.0200", "finished seeds count, asked for or not"


def test_table_3_has_differences():
    found = findings("table3", {"one_mask": 0.1769})
    ours, paper, difference_ = rows_after(text_of("table3", found)[0], "BERT4Rec (1 mask)")
    assert ours == ["0.1769"] * 3
    assert paper == ["<u>0.2940</u>", "<u>0.1769</u>", "<u>0.1618</u>"], "the paper's are marked as ours are"
    assert difference_ == ["-0.1171", "+0.0000", "+0.0151"]
    text, _ = text_of("table3", findings("table3", {"sasrec": 0.1, "one_mask": 0.1769, "bert4rec": 0.18}))
    marked = [rows_after(text, title)[0] for title in ("SASRec", "BERT4Rec (1 mask)", "BERT4Rec")]
    assert marked == [["0.1000"] * 3, ["<u>0.1769</u>"] * 3, ["**0.1800**"] * 3]


def test_table_4_has_the_speed():
    text, _ = text_of("table4", findings("table4", {"20": 0.2, "30": 0.1}))
    samples = rows_after(text, "samples/s")
    batch, steps = 64, 24_000
    assert samples[0] == ["not run", f"{batch * steps / 2:,.0f}", f"{batch * steps / 2:,.0f}", "not run", "not run"]
    assert samples[1] == ["5,504", "3,256", "2,284", "1,776", "1,441"]
    assert samples[2] == ["", "+764,744", "+765,716", "", ""]
    ours, paper, difference_ = rows_after(text, "NDCG@10")
    assert ours[1:3] == ["**0.2000**", "<u>0.1000</u>"]
    assert paper == ["0.1826", "**0.1875**", "<u>0.1837</u>", "0.1833", "0.1832"]
    assert difference_ == ["", "+0.0125", "-0.0837", "", ""]


def test_table_5_is_marked_as_in_the_paper():
    values = {"default": 0.2, "no_positions": 0.179, "layers_3": 0.21, "heads_4": 0.2, "heads_8": 0.181}
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


def test_a_default_without_dropout_is_told(monkeypatch):
    default = presets.find_preset("fast", "ml-1m")
    for dropout, count in ((0.0, 1), (0.1, 0)):
        settings = {**default.settings, "dropout": dropout, "attention_dropout": 0.0}
        changed = dataclasses.replace(default, settings=settings)
        monkeypatch.setitem(presets.PRESETS, ("fast", "ml-1m", "bert4rec"), changed)
        text, _ = text_of("table5", findings("table5", {"default": 0.4}, Plan(("ml-1m",))))
        assert text.count("On ML-1m the default has no dropout, so “w/o dropout” is the same run.") == count
        assert rows_after(text, "w/o dropout")[0] == ["0.4000" if count else "not run"]


def test_quick_runs_have_a_table_5_too():
    found = findings("table5", {"default": 0.4}, Plan(("synthetic",), quick=True))
    assert rows_after(text_of("table5", found)[0], "L = 2, h = 2")[0] == ["0.4000"]


def test_a_run_is_not_compared_with_itself():
    """ML-1m's default has no dropout, so there is nothing to remove."""
    plan = Plan(("beauty", "ml-1m"))
    jobs = plan.jobs("table5")
    values = {("beauty", "default"): 0.2, ("beauty", "no_dropout"): 0.1, ("ml-1m", "default"): 0.5}
    lines = [line_of(jobs[place][0], value) for place, value in values.items()]
    said = claims(text_of("table5", Findings("table5", plan, {line["key"]: line for line in lines}))[0])
    (found,) = (said[claim] for claim in said if claim.startswith("Layer norm, residual"))
    assert found == "not run"


def test_section_4_8_on_ml_20m():
    found = findings("table5", {"layers_4": 0.5, "layers_4_no_residual": 0.44}, Plan(("ml-20m",)))
    assert "falls by about 10 % without residual connections. Here: -12.0%." in text_of("table5", found)[0]


def test_the_cells_of_a_data_set_are_of_one_budget_and_it_is_stated():
    """The default is finished in full too, but an ablation is compared with the default that had its budget."""
    short, full = Plan(("beauty",), budget=0.25), Plan(("beauty",))
    names = ("default", "no_positions", "layers_1", "layers_3", "layers_4")
    parts = [line_of(short.jobs("table5")["beauty", name][0], 0.1) for name in names]
    whole = line_of(full.jobs("table5")["beauty", "default"][0], 0.3)
    lines = {line["key"]: line for line in (*parts, whole)}
    found = Findings("table5", full, lines)
    text, _ = text_of("table5", found)
    assert rows_after(text, "L = 2, h = 2")[0] == ["0.1000"]
    assert "Budget: these runs had only a part of their presets' steps: Beauty 25 %." in text
    runs = [row for row in rows_of(text) if row[0] in lines]
    assert [row[5:] for row in runs] == [["25 %", "6,000 of 64", "none", "0.1000", "0:02:00", "2,000 MB"]] * 5
    assert "Runs left out, as they had another share of the steps: 1 on Beauty with 100 %." in text
    fewer = {line["key"]: line for line in (*parts[:4], whole)}
    assert Findings("table5", full, fewer).budgets == {"beauty": 1.0}, "of as many steps in all the largest"


def test_a_run_that_two_cells_share_counts_once():
    """On ML-1m the preset has no dropout, so the default is “w/o dropout” too."""
    short, full = Plan(("ml-1m",), budget=0.25), Plan(("ml-1m",))
    names = ("default", "no_positions", "layers_1", "layers_3", "heads_4")
    parts = [line_of(short.jobs("table5")["ml-1m", name][0], 0.1) for name in names]
    lines = {line["key"]: line for line in (*parts, line_of(full.jobs("table5")["ml-1m", "default"][0], 0.3))}
    found = Findings("table5", full, lines)
    assert found.budgets == {"ml-1m": 0.25} and found.left_out == {("ml-1m", 1.0): 1}


def test_figures_hold_the_papers_words_against_the_results():
    values = {str(rho): 0.2 - abs(rho - 0.6) / 10 for rho in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)}
    text, _ = text_of("figure4", findings("figure4", values))
    assert "rho = .2 is better than .1. Here: true in 1 of 1 cases." in text
    assert "Above rho = .6 results fall as rho rises. Here: true in 3 of 3 cases." in text
    assert "Beauty 0.6 (the paper's 0.6)" in text
    assert [row[0] for row in rows_of(text) if row[1:] == ["**0.2000**", "**0.2000**"]] == ["rho = 0.6"]
    assert text.count("**0.") == 2, "the best of each line is marked, and nothing else"
    text, _ = text_of("figure2", findings("figure2", {}))
    assert "scaled to a sum of 1" in text


CURVES = {
    "gru4rec": (0.10, 0.11, 0.12, 0.13, 0.13),
    "gru4rec_plus": (0.11, 0.14, 0.17, 0.16, 0.15),
    "caser": (0.10, 0.09, 0.14, 0.12, 0.13),
    "sasrec": (0.12, 0.15, 0.18, 0.19, 0.19),
    "bert4rec": (0.16, 0.20, 0.21, 0.22, 0.21),
}


def claims(text):
    return dict(re.findall(r"The paper says: (.*?) (?:\(here.*?\)\. )?Here: (.*)\.", text))


def test_figure_3_holds_section_4_5_against_the_results():
    """On Beauty the curves of both metrics are those above; counted by hand."""
    widths = (16, 32, 64, 128, 256)
    values = {f"{model}@{width}": value for model, curve in CURVES.items() for width, value in zip(widths, curve)}
    text, _ = text_of("figure3", findings("figure3", values))
    assert rows_after(text, "NDCG@10 Caser")[0] == ["0.1000", "0.0900", "0.1400", "0.1200", "0.1300"]
    said = claims(text)
    assert said == {
        "Results converge as the width grows": "true in 10 of 10 cases",
        "A larger d is not necessarily better, especially on Beauty and Steam": (
            "on Beauty and Steam true in 6 of 10 cases, on MovieLens not run"
        ),
        "Caser is unstable": "true in 2 of 2 cases",
        "SASRec and BERT4Rec are above the three other models at every width.": "true in 60 of 60 cases",
        "BERT4Rec is above every other model at every width.": "true in 40 of 40 cases",
    }
    some = {name: value for name, value in values.items() if name not in ("caser@32", "sasrec@256", "gru4rec@128")}
    some |= {"sasrec@64": 0.3}
    said = claims(text_of("figure3", findings("figure3", some, Plan(("beauty", "ml-1m"))))[0])
    assert said["Results converge as the width grows"] == "true in 8 of 8 cases, 12 not run"
    assert said["A larger d is not necessarily better, especially on Beauty and Steam"] == (
        "on Beauty and Steam true in 6 of 6 cases, 4 not run, on MovieLens not run"
    )
    assert said["Caser is unstable"] == "not run"
    assert said["BERT4Rec is above every other model at every width."] == "true in 32 of 34 cases, 46 not run"


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


def test_the_papers_statements_about_tables_3_and_4_are_counted():
    said = claims(text_of("table3", findings("table3", {"sasrec": 0.2, "one_mask": 0.1, "bert4rec": 0.15}))[0])
    assert list(said.values()) == ["true in 0 of 3 cases", "true in 3 of 3 cases"]
    values = {"10": 0.1, "20": 0.2, "30": 0.3, "40": 0.2, "50": 0.1}
    said = claims(text_of("table4", findings("table4", values))[0])
    assert said["The best N is 20 on Beauty and 200 on ML-1m."] == "Beauty 30"
    assert said["Training gets slower as N grows"] == "true in 0 of 4 cases", "all took as long"


def test_the_papers_statements_about_table_5_are_counted():
    """Shares of the default, by hand. Beauty: w/o PFFN .9, LN .5, RC .95, one head 1.1, eight 1.05. ML-1m: w/o PE .8,
    PFFN .8, LN .9, RC .9, four heads 1.1, one .9."""
    plan = Plan(("beauty", "ml-1m"))
    jobs = plan.jobs("table5")
    beauty = {"default": 0.2, "no_feed_forward": 0.18, "no_layer_norm": 0.1, "no_residual": 0.19}
    beauty |= {"layers_1": 0.1, "layers_3": 0.3, "layers_4": 0.19, "heads_1": 0.22, "heads_8": 0.21}
    movies = {"default": 0.5, "no_positions": 0.4, "no_feed_forward": 0.4, "no_layer_norm": 0.45, "no_residual": 0.45}
    movies |= {"heads_4": 0.55, "heads_1": 0.45}
    lines = [line_of(jobs["beauty", variant][0], value) for variant, value in beauty.items()]
    lines += [line_of(jobs["ml-1m", variant][0], value) for variant, value in movies.items()]
    said = claims(text_of("table5", Findings("table5", plan, {line["key"]: line for line in lines}))[0])
    assert list(said.values()) == [
        "true in 1 of 1 cases",
        "true in 1 of 1 cases",
        "true in 1 of 2 cases, 1 not run",
        "true in 2 of 3 cases, 3 not run",
        "true in 1 of 1 cases",
        "true in 1 of 1 cases",
    ]


def test_the_answer_is_the_first_thing_in_the_report():
    """NDCG@10 .2 and .16 of 40,226 users: no ranks could make this chance. For .201 and .2 it depends on the ranks."""
    text, page = text_of("table2", findings("table2", TABLE2))
    assert text.index("## Which model ranks best?") < text.index("## About these results") and "Which model" in page
    rows = {row[0]: row[1:] for row in rows_of(text) if row[0].startswith("Beauty, ")}
    assert rows["Beauty, 100 popular"][2] in ("GRU4Rec+", "SASRec"), "these are equal"
    assert rows["Beauty, 100 popular"][:2] == ["**BERT4Rec**", "0.2000"]
    assert rows["Beauty, 100 popular"][3:] == ["0.1600", "+25.0%", "unknown", "yes, by a bound"]
    near = {**TABLE2, "item_transitions": 0.201}
    rows = {row[0]: row[1:] for row in rows_of(text_of("table2", findings("table2", near))[0])}
    assert rows["Beauty, all unseen items"] == [
        *("**item_transitions**", "0.2010", "BERT4Rec", "0.2000", "+0.5%", "unknown", "open"),
    ]
    alone, _ = text_of("table2", findings("table2", {"pop": 0.1}))
    assert "Beauty, 100 popular" not in alone, "one model is not compared"


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
        exceeds = answer.exceeds_bound(best, second, users)
        certain += exceeds
        assert paired > 2 or not exceeds
    assert (certain > 50) == (users > 50), "the rule must be able to say yes"


def test_the_papers_gains_are_those_that_it_prints():
    """Its own numbers give 10.30 % for ML-1m's NDCG@10, and 13.98 % for Beauty's HR@10."""
    for dataset, metric, printed in (("ml-1m", "NDCG@10", "+10.32%"), ("beauty", "HR@10", "+14.02%")):
        found = findings("table2", TABLE2, Plan((dataset,)))
        assert rows_after(text_of("table2", found)[0], metric)[1][-1] == printed


def test_table_1_has_differences_and_remarks():
    """To the digits that the paper prints."""
    columns = ("users", "items", "actions", "mean length", "density")
    statistics = {
        "beauty": dict(zip(columns, ("40,226", "54,540", "363,962", "8.80", "0.02%"))),
        "ml-1m": dict(zip(columns, ("6,040", "3,416", "999,611", "165.50", "4.84%"))),
        "ml-20m": dict(zip(columns, ("138,493", "26,744", "20,000,263", "144.41", "0.54%"))),
    }
    found = Findings("table1", Plan(DATASETS), {})
    text, _ = text_of("table1", found, statistics=statistics)
    assert rows_after(text, "Beauty")[2] == ["+0", "-2", "+0.01m", "+0.0", "+0.00%"]
    assert rows_after(text, "ML-1m")[2] == ["+0", "+0", "+0.0m", "+2.0", "+0.05%"]
    assert rows_after(text, "ML-20m")[2] == ["+0", "+0", "+0m", "+0.0", "+0.00%"]
    assert [row[0] for row in rows_of(text)].count("- difference") == 3, "of Steam there is nothing to compare"
    assert "Table 1's mean length and density of ML-1m are those without the two held-out actions" in text
    assert "held-out actions" not in text_of("table1", found, statistics={"beauty": statistics["beauty"]})[0]


def test_the_data_file_is_named():
    found = findings("table2", TABLE2)
    assert (
        f"Beauty: beauty.txt, SHA-256 of its content {FILE['sha256']}, the authors' own file."
        in text_of("table2", found)[0]
    )
    other = {**FILE, "name": "ml-1m.txt.gz", "as_published": False}
    job = Plan(("ml-1m",)).jobs("table2")["ml-1m", "pop"][0]
    found = Findings("table2", Plan(("ml-1m",)), {job.key: line_of(job, data_file=other)})
    assert (
        "not the file that the authors published: actions at equal times may be in another order"
        in (text_of("table2", found)[0])
    )


def test_cells_of_another_data_file_are_marked():
    """Gains over models that were trained on other data mean nothing."""
    jobs = Plan(("beauty",)).jobs("table2")
    other = {**FILE, "name": "other.txt", "sha256": "0123" * 16, "as_published": False}
    of = {"bert4rec": FILE, "pop": FILE, "sasrec": other, "ncf": FILE, "fpmc": other}
    lines = [line_of(jobs["beauty", model][0], TABLE2[model], data_file=file) for model, file in of.items()]
    found = Findings("table2", Plan(("beauty",)), {line["key"]: line for line in lines})
    text, _ = text_of("table2", found)
    ours = rows_after(text, "NDCG@10")[0]
    assert ours[0] == "0.0100" and ours[3] == "0.1200†" and ours[7] == "<u>0.1600†</u>"
    marked = sorted(f"{jobs['beauty', model][0].key} ({model})" for model in ("sasrec", "fpmc"))
    (said,) = [line for line in text.splitlines() if line.startswith("† These runs on Beauty used another data file")]
    assert f"other.txt, SHA-256 of its content {other['sha256']}" in said and all(one in said for one in marked)
    assert "Runs shown here: 5." in text


@pytest.mark.parametrize("published", [True, False])
def test_the_authors_own_file_is_the_one_that_others_are_marked_beside(published):
    jobs = Plan(("beauty",)).jobs("table2")
    few = {**FILE, "as_published": published}
    other = {**FILE, "name": "other.txt", "sha256": "0123" * 16, "as_published": False}
    of = {"pop": few, "sasrec": other, "ncf": other}
    lines = [line_of(jobs["beauty", model][0], TABLE2[model], data_file=file) for model, file in of.items()]
    found = Findings("table2", Plan(("beauty",)), {line["key"]: line for line in lines})
    assert [model for model in of if found.is_elsewhere("beauty", model)] == (
        ["sasrec", "ncf"] if published else ["pop"]
    )


def test_there_is_no_gain_over_models_of_another_file():
    jobs = Plan(("beauty",)).jobs("table2")
    other = {**FILE, "sha256": "0123" * 16, "as_published": False}
    for elsewhere, last in (((), "+"), (("pop",), "not run"), (tuple(MODELS), "+")):
        lines = [
            line_of(jobs["beauty", model][0], TABLE2[model], data_file=other if model in elsewhere else FILE)
            for model in MODELS
        ]
        found = Findings("table2", Plan(("beauty",)), {line["key"]: line for line in lines})
        assert rows_after(text_of("table2", found)[0], "NDCG@10")[0][-1].startswith(last)


def test_a_run_is_shown_with_what_it_reached_on_both_items():
    job = Plan(("beauty",)).jobs("table2")["beauty", "ncf"][0]
    for both, shown in (({"validation": {POPULAR: {"ndcg@10": 0.3}}}, "0.3000"), ({}, "none")):
        text, _ = text_of("table2", findings("table2", {}, others=[line_of(job, 0.2, **both)]))
        (row,) = [row for row in rows_of(text) if row[0] == job.key]
        assert row[7:9] == [shown, "0.2000"]


def test_runs_that_were_best_at_their_last_step_are_told():
    plan = Plan(("beauty",))
    fpmc, ncf = (plan.jobs("table2")["beauty", name][0] for name in ("fpmc", "ncf"))
    most = fpmc.run.training.steps
    others = [
        line_of(job, select={"steps": most, "seconds": 9.0, "best_step": best})
        for job, best in ((fpmc, most), (ncf, most - 1_000))
    ]
    text, _ = text_of("table2", findings("table2", {}, others=others))
    assert f"more steps may do better: {fpmc.key}." in text
    assert "more steps" not in text_of("table2", findings("table2", TABLE2))[0]


def test_what_is_known_to_be_wrong_with_a_run_stands_by_its_table():
    job = Plan(("beauty",)).jobs("table2")["beauty", "gru4rec"][0]
    text, _ = text_of("table2", findings("table2", {}, others=[line_of(job, remark="its kernels began equal")]))
    assert text.count(f"Read with care: {job.key} (gru4rec): its kernels began equal.") == 2
    assert "Read with care" not in text_of("table2", findings("table2", TABLE2))[0]


def test_failures_are_told():
    plan = Plan(("beauty",))
    job = plan.jobs("table2")["beauty", "ncf"][0]
    line = {"key": job.key, "run": job.run.to_dict(), "budget": 1.0, "status": "failed", "error": "<b>no luck</b>"}
    text, page = text_of("table2", Findings("table2", plan, {job.key: line}))
    assert f"Failed: ncf on beauty, run {job.key} (<b>no luck</b>)." in text
    assert "&lt;b&gt;no luck&lt;/b&gt;" in page and "<b>no luck" not in page
    assert "14 (finished: 0, failed: 1, stopped: 0, missing: 13)." in text
    on_other_data = {**line_of(job), "begun": line}
    text, _ = text_of("table2", Findings("table2", plan, {job.key: on_other_data}))
    assert f"Failed: ncf on beauty, run {job.key} (<b>no luck</b>)." in text and "finished: 1, failed: 0" in text


def test_the_page_says_the_same_as_the_markdown():
    text, page = text_of("table2", findings("table2", TABLE2))
    cells = [re.sub(r"</?[a-z]+>", "", cell) for cell in re.findall(r"<td>(.*?)</td>", page)]
    plain = [re.sub(r"\*\*|</?u>", "", cell) for row in rows_of(text) if row[0] for cell in row]
    assert [cell for cell in cells if cell in plain] == cells and "<b>0.2000</b>" in page and "<u>0.1600</u>" in page
