"""The paper's tables as data: their grids, the published numbers, and what each cell runs."""

import pytest

from bert4rec_tf.config import presets
from bert4rec_tf.config.paper import read_paper
from bert4rec_tf.evaluation.metrics import METRICS
from experiments.plan import Plan, merge_equal, shorten
from experiments.tables import MODELS, PAPER_DATASETS, TABLES, Table, list_datasets, make_label

IMPROVEMENTS = {
    "beauty": (5.19, 14.12, 14.02, 11.35, 14.02, 10.74),
    "steam": (8.14, 5.90, 6.08, 6.66, 5.31, 4.00),
    "ml-1m": (21.78, 8.13, 4.15, 11.91, 10.32, 12.24),
    "ml-20m": (35.22, 10.41, 4.72, 18.04, 14.47, 18.85),
}
"""The last column of the paper's Table 2 in percent, which its numbers must give."""

MARKED = {
    "beauty": ({"layers_3", "layers_4", "heads_1"}, {"no_layer_norm", "no_residual"}),
    "steam": ({"layers_3", "layers_4", "heads_4", "heads_8"}, set()),
    "ml-1m": ({"layers_3", "layers_4", "heads_4"}, {"no_positions"}),
    "ml-20m": ({"layers_3", "layers_4", "heads_4", "heads_8"}, {"no_positions"}),
}
"""What the paper's Table 5 prints bold, and what with an arrow."""


def changes(run, base):
    return {name: value for name, value in run.flatten().items() if base.flatten().get(name, ...) != value}


def of(name, dataset, preset="fast"):
    """The run of each variant."""
    jobs = Plan((dataset,), preset).make_jobs(name)
    return {variant: some[0].run for (_, variant), some in jobs.items()}


def test_the_numbers_give_the_papers_improvements():
    table2, printed = read_paper()["table2"], read_paper()["improvements"]
    assert printed == {
        dataset: {metric: pytest.approx(percent / 100) for metric, percent in zip(METRICS, percents)}
        for dataset, percents in IMPROVEMENTS.items()
    }
    for dataset, percents in IMPROVEMENTS.items():
        rows = table2[dataset]
        assert list(rows) == list(MODELS)
        for metric, percent in zip(METRICS, percents):
            best = max(rows[model][metric] for model in rows if model != "bert4rec")
            if (dataset, metric) == ("beauty", "hr@10"):  # there the paper counts from SASRec, not from GRU4Rec+
                best = rows["sasrec"][metric]
            assert 100 * (rows["bert4rec"][metric] / best - 1) == pytest.approx(percent, abs=0.03), (dataset, metric)
    for metric, index in (("hr@10", 2), ("ndcg@10", 4), ("mrr", 5)):
        mean = sum(row[index] for row in IMPROVEMENTS.values()) / 4
        assert 100 * read_paper()["gains"][metric] == pytest.approx(mean, abs=0.011)


def test_the_numbers_of_the_ablation_have_the_papers_marks():
    for dataset, (bold, arrow) in MARKED.items():
        row = {variant: cell["ndcg@10"] for variant, cell in read_paper()["table5"][dataset].items()}
        assert {variant for variant, value in row.items() if value > row["default"]} == bold
        assert {variant for variant, value in row.items() if value < 0.9 * row["default"]} == arrow


def test_every_published_cell_has_a_run():
    for name in ("table2", "table3", "table4", "table5"):
        for dataset, row in read_paper()[name].items():
            assert set(row) <= set(of(name, dataset)), (name, dataset)


def test_tables_share_runs_and_what_one_keeps_is_kept():
    plan = Plan(("beauty",))
    names = ("table2", "table5", "figure2", "figure4")
    jobs = [
        plan.make_jobs(name)["beauty", key][0] for name, key in zip(names, ("bert4rec", "default", "default", "0.6"))
    ]
    (one,) = merge_equal(jobs)
    assert one.attention and one.run == presets.make_run("beauty")


def test_runs_change_what_their_titles_say():
    usual = presets.make_run("beauty")
    for name, variant, expected in (
        ("table3", "one_mask", {"hidden_dim": 256, "max_predictions": 1}),
        ("table4", "20", {"max_length": 20, "max_predictions": 12}),
        ("table5", "no_residual", {"use_residual": False}),
        ("figure4", "0.9", {"mask_proportion": 0.9, "max_predictions": 45}),
    ):
        changed = changes(of(name, "beauty")[variant], usual)
        assert expected == {key: changed[key] for key in changed if key not in ("num_heads", "intermediate_dim")}
    wide = of("figure3", "ml-1m", "released")["bert4rec@128"].flatten()
    assert (wide["hidden_dim"], wide["dropout"]) == (128, 0.5), "released for this width; the preset's own is 0.2"


def test_a_budget_scales_steps_warm_up_and_measurements():
    run = presets.make_run("beauty")
    part = shorten(run, 0.25)
    assert changes(part, run) == {"steps": 6_000, "warmup_steps": 250, "evaluate_every": 500}
    assert shorten(run, 1.0) is run and part.digest != run.digest
    least = shorten(run, 1e-9).training
    assert (least.steps, least.warmup_steps, least.evaluate_every) == (1, 0, 1)


def test_quick_runs_are_small_and_reach_every_table():
    plan = Plan(("synthetic",), quick=True)
    jobs = {name: plan.make_all_jobs([name]) for name in TABLES}
    assert [name for name in TABLES if not jobs[name]] == ["table1"]
    every = plan.make_all_jobs(TABLES)
    assert len(every) <= 16 and {job.run.model for job in every} == {*MODELS, "item_transitions"}
    assert all(job.run.training.steps <= 20 and job.run.flatten().get("hidden_dim", 0) <= 32 for job in every)
    assert {job.run.architecture.num_layers for job in every if job.run.model == "bert4rec"} == {1}
    assert sum(job.attention for job in every) == 1


def test_tables_may_have_two_digits_and_data_sets_beyond_the_papers(monkeypatch):
    assert (make_label("table5"), make_label("figure12")) == ("Table 5", "Figure 12")
    assert list_datasets() == PAPER_DATASETS
    monkeypatch.setitem(TABLES, "table12", Table("Mine", ("shop",), {}, ()))
    assert list_datasets() == (*PAPER_DATASETS, "shop")
