"""The paper's tables as data: their grids, the published numbers, and what each cell runs."""

import dataclasses

import pytest
from support.paths import ROOT

from bert4rec_tf.config import presets
from bert4rec_tf.config.paper import read_paper
from bert4rec_tf.evaluation.metrics import METRICS
from experiments.plan import Plan, merge_equal, shorten
from experiments.tables import DATASETS, MODELS, TABLES

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
    """The run of each variant, and what it changes over the preset at d = 64."""
    jobs = Plan((dataset,), preset).jobs(name)
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


def test_tables_that_repeat_a_number_agree():
    published = read_paper()
    for dataset in TABLES["table3"].datasets:
        for model in ("sasrec", "bert4rec"):
            for metric, value in published["table3"][dataset][model].items():
                assert published["table2"][dataset][model][metric] == value
    assert published["table4"]["beauty"]["50"]["ndcg@10"] == published["table5"]["beauty"]["default"]["ndcg@10"]


def test_the_figures_have_no_numbers():
    assert not {"figure2", "figure3", "figure4"} & set(read_paper())


def test_the_published_numbers_are_in_one_file():
    root = ROOT
    assert [path.name for path in root.glob("*/*/paper.json")] == ["paper.json"]
    for text in (path.read_text() for path in (root / "experiments").glob("*.py")):
        assert "0.1862" not in text and ".4818" not in text


def test_every_published_cell_has_a_run_and_every_run_a_title():
    for name in ("table2", "table3", "table4", "table5"):
        for dataset, row in read_paper()[name].items():
            assert set(row) <= set(of(name, dataset)), (name, dataset)
    for table in TABLES.values():
        for dataset, variant in table.cells(DATASETS):
            assert dataset in table.datasets and variant in table.variants


def test_the_grid_is_the_papers():
    sizes = {name: len(table.cells(DATASETS)) for name, table in TABLES.items()}
    assert sizes == {
        "table1": 0,
        "table2": 9 * 4 + 5 * 2,
        "table3": 3 * 2,
        "table4": 5 * 2,
        "table5": 12 * 4 + 1,
        "figure2": 1,
        "figure3": 5 * 5 * 4,
        "figure4": 9 * 4,
    }


def test_the_models_have_their_presets():
    runs = of("table2", "beauty")
    for model in ("bert4rec", "sasrec"):
        assert runs.pop(f"{model}_best") == presets.make_run("beauty", model, "best")
    assert changes(runs.pop("bert4rec_one_mask"), runs["bert4rec"]) == {"max_predictions": 1}
    softmax = runs.pop("sasrec_softmax")
    assert (softmax.model, softmax.architecture.loss) == ("sasrec", "cross_entropy")
    assert (softmax.training.protocol, softmax.training.steps) == ("fixed", 3_500)
    for model, run in runs.items():
        assert run == presets.make_run("beauty", model)
    assert of("table2", "ml-1m", "table2")["bert4rec"].architecture.hidden_dim == 256


def test_one_mask_differs_in_its_masks_alone():
    runs = of("table3", "ml-1m")
    assert changes(runs["one_mask"], runs["bert4rec"]) == {"max_predictions": 1}
    assert all(run.architecture.hidden_dim == 256 for run in runs.values())


def test_predictions_rise_with_the_proportion():
    for dataset, length in (("beauty", 50), ("ml-1m", 200)):
        runs = of("figure4", dataset)
        assert [run.masking.mask_proportion for run in runs.values()] == [tenth / 10 for tenth in range(1, 10)]
        assert [run.masking.max_predictions for run in runs.values()] == [
            length * tenth // 10 for tenth in range(1, 10)
        ]
        assert {run.architecture.hidden_dim for run in runs.values()} == {64}


def test_lengths_and_widths():
    assert [run.architecture.max_length for run in of("table4", "ml-1m").values()] == [10, 50, 100, 200, 400]
    widths = of("figure3", "beauty")
    for key, run in widths.items():
        model, width = key.split("@")
        assert (run.model, run.architecture.hidden_dim) == (model, int(width))
    assert {key: run.architecture.num_heads for key, run in widths.items() if key.startswith("bert")} == {
        "bert4rec@16": 1,
        "bert4rec@32": 1,
        "bert4rec@64": 2,
        "bert4rec@128": 4,
        "bert4rec@256": 8,
    }


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("preset", ["fast", "released", "table2"])
def test_what_changes_nothing_is_the_presets_own_run(preset, dataset):
    """Tables that repeat a run of the paper share it: the default, the preset's N, and its rho."""
    whole = presets.make_run(dataset, preset=preset)
    own = {
        "table2": "bert4rec",
        "table4": str(whole.architecture.max_length),
        "table5": "default",
        "figure2": "default",
        "figure3": "bert4rec@64",
        "figure4": str(whole.masking.mask_proportion),
    }
    runs = {name: of(name, dataset, preset).get(key) for name, key in own.items()}
    if dataset == "ml-20m":  # whose presets predict half of what they could mask
        assert runs["table5"].masking.max_predictions == 20 and runs["figure4"].masking.max_predictions == 40
        del own["figure4"]
    assert runs["table2"].digest == whole.digest
    narrow = {runs[name].digest for name in own if name != "table2" and dataset in TABLES[name].datasets}
    assert len(narrow) == 1
    assert (whole.digest in narrow) == (whole.architecture.hidden_dim == 64)
    widest = [of("figure3", dataset, preset)["bert4rec@256"]]
    if dataset in TABLES["table3"].datasets:
        widest.append(of("table3", dataset, preset)["bert4rec"])
    assert len({run.digest for run in widest}) == 1
    assert (whole.digest == widest[0].digest) == (whole.architecture.hidden_dim == 256)


@pytest.mark.parametrize("dataset", DATASETS)
def test_dropout_is_the_presets_own_or_the_authors(dataset):
    def dropouts(preset):
        names = [name for name in ("table3", "table4", "figure3", "figure4") if dataset in TABLES[name].datasets]
        runs = [run for name in names for run in of(name, dataset, preset).values() if run.model == "bert4rec"]
        return {
            (run.architecture.hidden_dim, run.architecture.dropout, run.architecture.attention_dropout) for run in runs
        }

    own = presets.make_run(dataset).architecture
    assert {one[1:] for one in dropouts("fast")} == {(own.dropout, own.attention_dropout)}
    for preset in ("released", "table2"):
        assert dropouts(preset) == {
            (width, *presets.dropout_of(dataset, width).values()) for width in (16, 32, 64, 128, 256)
        }


def test_an_ablation_changes_what_it_names():
    runs = of("table5", "beauty")
    default = runs["default"]
    assert (default.architecture.num_layers, default.architecture.num_heads) == (2, 2)
    assert default.architecture.hidden_dim == 64
    assert {variant: changes(run, default) for variant, run in runs.items()} == {
        "default": {},
        "no_positions": {"use_positions": False},
        "no_feed_forward": {"use_feed_forward": False},
        "no_layer_norm": {"use_layer_norm": False},
        "no_residual": {"use_residual": False},
        "no_dropout": {"dropout": 0.0, "attention_dropout": 0.0},
        "layers_1": {"num_layers": 1},
        "layers_3": {"num_layers": 3},
        "layers_4": {"num_layers": 4},
        "heads_1": {"num_heads": 1},
        "heads_4": {"num_heads": 4},
        "heads_8": {"num_heads": 8},
    }
    last = of("table5", "ml-20m")["layers_4_no_residual"]
    assert (last.architecture.num_layers, last.architecture.use_residual) == (4, False)


def test_tables_share_runs_and_what_one_keeps_is_kept():
    plan = Plan(("beauty",))
    names = ("table2", "table5", "figure2", "figure4")
    jobs = [plan.jobs(name)["beauty", key][0] for name, key in zip(names, ("bert4rec", "default", "default", "0.6"))]
    (one,) = merge_equal(jobs)
    assert one.attention and one.run == presets.make_run("beauty")


def test_a_budget_scales_steps_warm_up_and_measurements():
    run = presets.make_run("beauty")
    part = shorten(run, 0.25)
    assert changes(part, run) == {"steps": 6_000, "warmup_steps": 250, "evaluate_every": 500}
    assert shorten(run, 1.0) is run and part.digest != run.digest
    least = shorten(run, 1e-9).training
    assert (least.steps, least.warmup_steps, least.evaluate_every) == (1, 0, 1)


def test_quick_runs_are_small_and_reach_every_table():
    plan = Plan(("synthetic",), quick=True)
    jobs = {name: plan.all_jobs([name]) for name in TABLES}
    assert [name for name in TABLES if not jobs[name]] == ["table1"]
    every = plan.all_jobs(TABLES)
    assert len(every) <= 16 and {job.run.model for job in every} == {*MODELS, "item_transitions"}
    assert all(job.run.training.steps <= 20 and job.run.flatten().get("hidden_dim", 0) <= 32 for job in every)
    assert {job.run.architecture.num_layers for job in every if job.run.model == "bert4rec"} == {1}
    assert sum(job.attention for job in every) == 1


def test_seeds_repeat_every_run():
    jobs = Plan(("beauty",), seeds=(1, 2)).jobs("table2")["beauty", "pop"]
    assert [job.run.seed for job in jobs] == [1, 2]
    assert jobs[1].run == dataclasses.replace(jobs[0].run, seed=2)
