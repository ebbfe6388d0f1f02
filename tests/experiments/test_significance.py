"""Whether a difference between two models is one, against scipy and what the ranks say."""

import itertools
import json

import numpy as np
import pytest
import scipy.stats
from support.invented_results import line_of

from bert4rec_tf.evaluation.metrics import METRICS, PROTOCOLS, compute_difference, compute_metrics, compute_per_user
from bert4rec_tf.foundation import files, npz
from bert4rec_tf.runs.workdir import FORMAT, WorkDirectory
from experiments import answer, report, significance
from experiments.findings import Findings
from experiments.plan import Plan
from experiments.results import Results
from experiments.sweep import Sweep
from experiments.tables import MODELS


def ranks(seed, mean, users=400):
    return np.random.default_rng(seed).poisson(mean, users)


def test_a_difference_is_scipys():
    first, second = compute_per_user("ndcg@10", ranks(1, 9)), compute_per_user("ndcg@10", ranks(2, 8.8))
    made = compute_difference(first, second)
    gains = second - first
    statistic = gains.mean() / scipy.stats.sem(gains)
    assert made.p_value == pytest.approx(2 * scipy.stats.norm.sf(abs(statistic)))
    assert made.p_value == pytest.approx(scipy.stats.ttest_rel(second, first).pvalue, rel=0.02), "of so many users"


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
        job = plan.jobs("table2")["beauty", model][0]
        work = WorkDirectory(sweep.folder(job))
        files.make_folder(work.path)
        found = ranks(number, mean)
        npz.write(work.ranks, {"users": np.arange(len(found)), **dict.fromkeys(PROTOCOLS, found)})
        files.write_json(
            work.config,
            {
                "format": FORMAT,
                "run": job.run.to_dict(),
                "digest": job.key,
                **dict.fromkeys(("data_fingerprint", "vocabulary_fingerprint", "users_fingerprint"), "x"),
                "num_users": len(found),
                "environment": {},
            },
        )
        sweep.results.put(line_of(job, test=dict.fromkeys(PROTOCOLS, compute_metrics(found))))
    return Findings("table2", plan, sweep.results.read()), sweep


def test_significance_comes_from_the_saved_ranks(tmp_path):
    means = {"pop": 30, "ncf": 6, "sasrec": 2, "bert4rec": 6}
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
    text = (tmp_path / "results" / "report.md").read_text()
    assert "all 18 comparisons here are corrected together by Holm's method" in text
    assert f"better with p < 0.01 in {counts[0]} comparisons, worse in {counts[1]}." in text
    open_ones = [
        f"{MODELS[model]} on Beauty ({', '.join(name.upper() for name in METRICS if corrected[model, name] >= 0.01)})"
        for model in ("pop", "ncf", "sasrec")
    ]
    (said,) = [line for line in text.splitlines() if line.startswith("Not significantly different from ")]
    listed = [one for one in open_ones if not one.endswith("()")]
    assert said == f"Not significantly different from {'; '.join(listed)}."


def test_comparisons_outlive_the_work_directories(tmp_path):
    found, sweep = finished_with_ranks(tmp_path, {"pop": 30, "bert4rec": 6})
    report.write({"table2": found}, sweep)
    before = (tmp_path / "results" / "report.md").read_text()
    elsewhere = Sweep(sweep.results, tmp_path / "nowhere")
    report.write({"table2": found}, elsewhere)
    assert (tmp_path / "results" / "report.md").read_text() == before and "corrected" in before


def test_what_was_not_compared_is_named(tmp_path):
    found, sweep = finished_with_ranks(tmp_path, {"pop": 30, "ncf": 8, "sasrec": 6, "bert4rec": 6})
    for model in ("ncf", "sasrec"):
        WorkDirectory(sweep.folder(found.plan.jobs("table2")["beauty", model][0])).ranks.unlink()
    report.write({"table2": found}, sweep)
    text = (tmp_path / "results" / "report.md").read_text()
    assert "all 6 comparisons" in text
    assert text.count("Not compared or counted, because the ranks of both runs were not here together: ") == 1
    assert "together: NCF on Beauty; SASRec on Beauty." in text


def test_comparisons_of_other_data_do_not_count(tmp_path):
    """The same two runs were compared on the file of before, whose ranks are gone."""
    found, sweep = finished_with_ranks(tmp_path, {"pop": 30, "bert4rec": 6})
    report.write({"table2": found}, sweep)
    lines = {key: {**line, "test": {**line["test"]}} for key, line in found.lines.items()}
    other = next(line for line in lines.values() if line["run"]["model"] == "bert4rec")
    other["test"]["popular"] = {name: value + 0.01 for name, value in other["test"]["popular"].items()}
    elsewhere = Sweep(sweep.results, tmp_path / "nowhere")
    report.write({"table2": Findings("table2", found.plan, lines)}, elsewhere)
    assert "Significance: unknown" in (tmp_path / "results" / "report.md").read_text()


def test_a_lead_has_the_interval_of_the_same_users(tmp_path):
    means = {"pop": 30, "ncf": 6, "sasrec": 2, "bert4rec": 2.2}
    found, sweep = finished_with_ranks(tmp_path, means)
    report.write({"table2": found}, sweep)
    values = {
        model: compute_per_user("ndcg@10", ranks(number, mean)) for number, (model, mean) in enumerate(means.items())
    }
    best, second = sorted(values, key=lambda model: values[model].mean(), reverse=True)[:2]
    gains = values[best] - values[second]
    low, high = (gains.mean() + sign * 1.96 * scipy.stats.sem(gains) for sign in (-1, 1))
    text = (tmp_path / "results" / "report.md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| Beauty, 100 popular | **")]
    assert row.split(" | ")[1:3] == [f"**{MODELS[best]}**", f"{values[best].mean():.4f}"]
    assert row.endswith(f" | {low:+.4f} to {high:+.4f} (one seed) | {'yes' if low > 0 else 'no'} |")
    for model in ("sasrec", "bert4rec"):
        WorkDirectory(sweep.folder(found.plan.jobs("table2")["beauty", model][0])).ranks.unlink()
    (tmp_path / "results" / significance.FILE).unlink()
    report.write({"table2": found}, sweep)
    text = (tmp_path / "results" / "report.md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| Beauty, 100 popular | **")]
    assert " | unknown | " in row


@pytest.mark.parametrize(("of_users", "of_seeds"), [(1.0, 0.0), (0.3, 1.0), (0.0, 1.0)])
def test_the_interval_of_a_lead_over_seeds_covers_the_truth(of_users, of_seeds):
    """Two models with a true lead of .01, drawn 2,000 times: the users' chance is one for all seeds of a lead."""
    draw, covered = np.random.default_rng(4), 0
    for _ in range(2_000):
        lead = 0.01 + draw.normal(0, 0.002 * of_users)
        bests, seconds = (draw.normal(mean, 0.002 * of_seeds, 3) for mean in (0.2 + lead, 0.2))
        one_seed = bests[0] - seconds[0]
        known = {"low": one_seed - 1.96 * 0.002 * of_users, "high": one_seed + 1.96 * 0.002 * of_users}
        low, high = answer.compute_interval(known, bests, seconds)
        covered += low <= 0.01 <= high
    assert 0.94 < covered / 2_000 < 0.985


def test_the_interval_with_a_single_seed_is_that_of_the_seed():
    assert answer.compute_interval({"low": 0.1, "high": 0.3}, [0.5], [0.2, 0.3]) == (0.1, 0.3)


def test_older_comparisons_of_popular_candidates_count_where_they_suffice(tmp_path):
    found, sweep = finished_with_ranks(tmp_path, {"pop": 30, "bert4rec": 6})
    report.write({"table2": found}, sweep)
    path = sweep.results.folder / significance.FILE
    (name,) = kept = sweep.results.read_json(significance.FILE)
    elsewhere = Sweep(sweep.results, tmp_path / "nowhere")
    for older, counts in ((kept[name]["popular"], False), ({"popular": kept[name]["popular"]}, True)):
        files.write_json(path, {name: older})
        report.write({"table2": found}, elsewhere)
        text = (tmp_path / "results" / "report.md").read_text()
        assert ("all 6 comparisons" in text, "Significance: unknown" in text) == (counts, not counts)
        rows = [line for line in text.splitlines() if line.startswith("| Beauty, 100 ") and " | **" in line]
        assert [" | unknown | " in row for row in rows] == [not counts, True], "popular, uniform"


def test_comparisons_of_removed_results_are_dropped(tmp_path):
    found, sweep = finished_with_ranks(tmp_path, {"pop": 30, "ncf": 8, "bert4rec": 6})
    report.write({"table2": found}, sweep)
    pairs = significance.name_pairs(found)
    assert set(sweep.results.read_json(significance.FILE)) == set(pairs.values())
    lines = sweep.results.path.read_text().splitlines(keepends=True)
    files.write_text(sweep.results.path, "".join(line for line in lines if json.loads(line)["run"]["model"] != "ncf"))
    fewer = Findings("table2", found.plan, sweep.results.read())
    report.write({"table2": fewer}, sweep)
    assert set(sweep.results.read_json(significance.FILE)) == {pairs["beauty", "pop"]}
