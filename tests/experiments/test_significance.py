"""Whether a difference between two models is one, against scipy and what the ranks say."""

import itertools
import json
import re

import numpy as np
import pytest
import scipy.stats
from support.invented_results import line_of
from support.paths import ROOT

from bert4rec_tf.evaluation.metrics import METRICS, PROTOCOLS, compute_metrics, compute_per_user
from bert4rec_tf.foundation import files, npz
from bert4rec_tf.runs.folder import CONFIG_FORMAT, WorkDirectory
from experiments import answer, report, significance
from experiments.findings import Findings
from experiments.plan import Plan
from experiments.results import Results
from experiments.sweep import Sweep
from experiments.tables import MODELS


def ranks(seed, mean, users=400):
    return np.random.default_rng(seed).poisson(mean, users)


def test_holm_is_bonferroni_in_every_subset():
    """Closed testing: a hypothesis falls once every subset with it falls, each by Bonferroni."""
    for seed in range(5):
        p_values = dict(enumerate(np.random.default_rng(seed).uniform(size=7) ** 4))
        subsets = [some for size in range(1, 8) for some in itertools.combinations(p_values, size)]
        expected = {
            name: max(min(1.0, len(some) * min(p_values[one] for one in some)) for some in subsets if name in some)
            for name in p_values
        }
        assert significance.correct_by_holm(p_values) == pytest.approx(expected)


def finished_with_ranks(folder, means):
    """A sweep whose runs of Table 2 on Beauty have ranks in their work directories."""
    plan = Plan(("beauty",))
    sweep = Sweep(Results(folder / "results"), folder / "work")
    for number, (model, mean) in enumerate(means.items()):
        job = plan.make_jobs("table2")["beauty", model][0]
        work = WorkDirectory(sweep.folder(job))
        files.make_folder(work.path)
        found = ranks(number, mean)
        npz.write(work.ranks, {"users": np.arange(len(found)), **dict.fromkeys(PROTOCOLS, found)})
        files.write_json(
            work.config,
            {
                "format": CONFIG_FORMAT,
                "run": job.run.to_dict(),
                "digest": job.key,
                **dict.fromkeys(("data_fingerprint", "ids_fingerprint"), "x"),
                "num_users": len(found),
                "repeats": {"validation": 0.0},
                "environment": {},
            },
        )
        sweep.results.put(line_of(job, test=dict.fromkeys(PROTOCOLS, compute_metrics(found))))
    return Findings("table2", plan, sweep.results.read()), sweep


def test_significance_comes_from_the_saved_ranks(tmp_path):
    means = {"pop": 30, "ncf": 6.5, "sasrec": 2, "bert4rec": 6}
    found, sweep = finished_with_ranks(tmp_path, means)
    report.write({"table2": found}, sweep)
    all_ranks = {model: ranks(number, mean) for number, (model, mean) in enumerate(means.items())}
    p_values, better = {}, {}
    for model in ("pop", "ncf", "sasrec"):
        for metric in METRICS:
            gains = compute_per_user(metric, all_ranks["bert4rec"]) - compute_per_user(metric, all_ranks[model])
            p_values[model, metric] = 2 * scipy.stats.norm.sf(abs(gains.mean() / scipy.stats.sem(gains)))
            better[model, metric] = gains.mean() > 0
    corrected = significance.correct_by_holm(p_values)
    counts = [sum(corrected[one] < 0.01 and better[one] == sign for one in corrected) for sign in (True, False)]
    assert all(counts) and sum(counts) < 18, "the example has all three kinds"
    assert any(p_values[one] < 0.01 <= corrected[one] for one in corrected), "and one that the correction decides"
    text = (tmp_path / "results" / "report.md").read_text()
    assert "all 18 comparisons here are corrected together by Holm's method" in text
    assert f"better with p < 0.01 in {counts[0]} of 18 comparisons, worse in {counts[1]}, " in text
    open_ones = [
        f"{MODELS[model]} on Beauty ({', '.join(name.upper() for name in METRICS if corrected[model, name] >= 0.01)})"
        for model in ("pop", "ncf", "sasrec")
    ]
    (said,) = [line for line in text.splitlines() if line.startswith("Not significantly different from ")]
    listed = [one for one in open_ones if not one.endswith("()")]
    assert said == f"Not significantly different from {'; '.join(listed)}."


def test_pairs_without_ranks_are_in_the_tally_with_the_sign_of_their_means(tmp_path):
    found, sweep = finished_with_ranks(tmp_path, {"pop": 30, "sasrec": 2, "bert4rec": 6})
    sasrec = Plan(("beauty",)).make_jobs("table2")["beauty", "sasrec"][0]
    sweep.folder(sasrec).joinpath("ranks-test.npz").unlink()
    report.write({"table2": found}, sweep)
    text = (tmp_path / "results" / "report.md").read_text()
    pattern = r"in (\d) of 12 comparisons, worse in (\d), not significantly different in (\d), and untested in 6\."
    assert sum(map(int, re.search(pattern, text).groups())) == 6
    assert "BERT4Rec's mean is higher: SASRec on Beauty (0 of 6). That is 0 of 6." in text


def test_comparisons_outlive_the_work_directories_but_not_the_results_of_their_runs(tmp_path):
    found, sweep = finished_with_ranks(tmp_path, {"pop": 30, "ncf": 9, "bert4rec": 6})
    report.write({"table2": found}, sweep)
    text, before = (tmp_path / "results" / "report.md").read_text(), sweep.results.read_json(significance.FILE)
    elsewhere = Sweep(sweep.results, tmp_path / "nowhere")
    report.write({"table2": found}, elsewhere)
    assert (tmp_path / "results" / "report.md").read_text() == text and "corrected" in text
    lines = sweep.results.read()
    changed = Plan(("beauty",)).make_jobs("table2")["beauty", "ncf"][0]
    lines[changed.key]["test"]["popular"]["mrr"] += 0.01
    sweep.results.path.write_text("".join(f"{json.dumps(line)}\n" for line in lines.values()))
    report.write({"table2": Findings("table2", Plan(("beauty",)), lines)}, elsewhere)
    after = sweep.results.read_json(significance.FILE)
    assert len(before) == 2 and after == {name: one for name, one in before.items() if changed.key not in name}


def test_the_kept_comparisons_fit_the_kept_results():
    folder = ROOT / "experiments" / "results"
    lines = Results(folder).read()
    for name, compared in files.read_json(folder / significance.FILE).items():
        first, second = (lines[key]["test"] for key in name.split())
        for protocol, of_metrics in compared.items():
            for metric, one in of_metrics.items():
                assert one["mean"] == pytest.approx(second[protocol][metric] - first[protocol][metric], abs=1e-9), name


@pytest.mark.parametrize(("of_users", "of_seeds"), [(1.0, 0.0), (0.3, 1.0), (0.0, 1.0)])
def test_the_interval_of_a_lead_over_seeds_covers_the_truth(of_users, of_seeds):
    """Two models with a true lead of .01, drawn 2,000 times: the users' chance is one for all seeds of a lead."""
    draw, covered = np.random.default_rng(4), 0
    for _ in range(2_000):
        lead = 0.01 + draw.normal(0, 0.002 * of_users)
        bests, seconds = (draw.normal(mean, 0.002 * of_seeds, 3) for mean in (0.2 + lead, 0.2))
        one_seed = bests[0] - seconds[0]
        known = {"low": one_seed - 1.96 * 0.002 * of_users, "high": one_seed + 1.96 * 0.002 * of_users}
        low, high = answer.compute_interval(answer.measure_variance(known), bests, seconds)
        covered += low <= 0.01 <= high
    assert 0.94 < covered / 2_000 < 0.985
