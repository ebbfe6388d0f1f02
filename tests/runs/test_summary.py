"""The verdict at the end of a run, and the command to go on with."""

import shlex

import numpy as np
import pytest

from bert4rec_tf.commands import summary
from bert4rec_tf.commands.flags import list_fields, parse_command
from bert4rec_tf.commands.recommend import RecommendOptions
from bert4rec_tf.evaluation.metrics import compute_cold_metrics
from bert4rec_tf.serving.client import split_ids

SHORT = {
    "run": {
        "model": "bert4rec",
        "dataset": "mine",
        "evaluation": {"num_negatives": 100},
        "training": {"protocol": "fixed"},
    },
    "users": 2,
    "users_with_fewer_candidates": 0,
    "users_not_evaluated": 0,
}
"""Of a run with two users."""


def content(model="bert4rec", **measured):
    """A run with these NDCG@10 among popular and among all items."""
    parts = {
        key: {"popular": {"ndcg@10": popular}, "full": {"ndcg@10": full}} for key, (popular, full) in measured.items()
    }
    return {"run": {"model": model, "evaluation": {"num_negatives": 100}}, **parts}


def short_table(model, **measured):
    found = content(model, **measured)
    for key in measured:
        for protocol in found[key].values():
            protocol["hr@10"] = protocol["ndcg@10"] + 0.1
    return summary.make_short_table({**SHORT, **found})


def test_the_short_table_has_six_lines_under_its_header():
    measured = {"test": (0.632, 0.3), "pop": (0.0876, 0.02), "item_transitions": (0.4327, 0.2)}
    _, header, *rows = short_table("bert4rec", **measured, ceiling=(0.7568, 0.5)).splitlines()
    assert header.split() == ["among", "ranked", "by", "NDCG@10", "HR@10"]
    assert [(row[:20].strip(), row[20:49].strip(), *row[49:].split()) for row in rows] == [
        ("all unseen items", "bert4rec", "0.3000", "0.4000"),
        ("all unseen items", "item_transitions (counting)", "0.2000", "0.3000"),
        ("all unseen items", "popularity", "0.0200", "0.1200"),
        ("100 popular items", "bert4rec", "0.6320", "0.7320"),
        ("100 popular items", "item_transitions (counting)", "0.4327", "0.5327"),
        ("100 popular items", "popularity", "0.0876", "0.1876"),
    ]
    assert len(short_table("pop", **measured).splitlines()) == 6  # popularity is the model itself


def test_the_verdict_names_a_model_that_counting_beats():
    found = summary.compare_with_counting(content(test=(0.18, 0.02), pop=(0.03, 0.02), item_transitions=(0.17, 0.04)))
    assert found == "Counting is as good or better: POP and item_transitions among all unseen items."


def beyond(mean, low, high):
    return {"first": 0.2, "second": 0.2 + mean, "mean": mean, "low": low, "high": high, "p_value": 0.1}


def test_the_verdict_says_what_the_network_adds_to_counting():
    measured = {"test": (0.6, 0.3), "item_transitions": (0.5, 0.2)}
    surely = summary.compare_with_counting({**content(**measured), "beyond_counting": beyond(0.1, 0.0512, 0.1488)})
    assert surely.splitlines()[-1] == (
        "Beyond counting transitions, the network adds +0.1000 (95 % interval +0.0512 to +0.1488) of NDCG@10 among all "
        "unseen items."
    )
    perhaps = summary.compare_with_counting({**content(**measured), "beyond_counting": beyond(0.1, -0.01, 0.21)})
    assert "The network adds nothing certain to counting transitions: +0.1000" in perhaps.splitlines()[-1]
    worse = summary.compare_with_counting({**content(**measured), "beyond_counting": beyond(-0.1, -0.15, -0.05)})
    assert worse.splitlines()[-1].startswith("The network is worse than counting transitions: -0.1000")
    assert "Serve counting: --model=item_transitions" in worse
    itself = {**content("item_transitions", **measured), "beyond_counting": beyond(0.0, 0.0, 0.0)}
    popular = {**itself, "run": {**itself["run"], "model": "pop"}}
    for one in (itself, popular, {**content(**measured), "beyond_counting": None}):
        assert "to counting" not in summary.compare_with_counting(
            one
        ) and "Beyond" not in summary.compare_with_counting(one)


@pytest.mark.parametrize(("mean", "half"), [(0.009, 0.001), (-0.009, 0.001), (0.011, 0.001), (0.009, 0.01)])
def test_a_lead_that_another_seed_may_turn_round_is_called_so(mean, half):
    """Of counting's 0.2, 5 % are 0.01."""
    found = {**content(test=(0.6, 0.3)), "beyond_counting": beyond(mean, mean - half, mean + half)}
    verdict = summary.compare_with_counting(found)
    is_small_lead = abs(mean) < 0.01 and half < abs(mean)
    assert ("unseen items; below 5 %, another seed may turn it round." in verdict) == is_small_lead
    assert len(verdict.splitlines()) == 1 and ("another seed" in verdict) == is_small_lead


def test_a_model_is_not_compared_with_itself_nor_with_nothing():
    found = content("pop", test=(0.03, 0.02), pop=(0.03, 0.02), item_transitions=(0.0, 0.01))
    assert summary.compare_with_counting(found) == ""


def test_the_verdict_includes_all_items_if_users_repeat_items():
    found = content(test=(0.6, 0.3), pop=(0.3, 0.1))
    found["test"]["any"], found["pop"]["any"] = {"ndcg@10": 0.5}, {"ndcg@10": 0.75}
    assert summary.compare_with_counting(found) == (
        "Counting is as good or better: POP among all items, seen ones too."
    )
    for protocol in found["test"].values():
        protocol["hr@10"] = 0.7
    found = {**SHORT, "test": found["test"], "repeats": {"validation": 0.2249, "test": 0.3}}
    for make in (summary.make_table, summary.make_short_table):
        assert make(found).endswith(
            "22 % of the validation items are items the user had before, so the model recommends seen items too, "
            "unless told otherwise, and is judged among all items: among unseen ones, such an item stands out."
        )
    verdict = summary.compare_with_counting(
        {**found, "beyond_counting": {"protocol": "any", **beyond(0.1, 0.05, 0.15)}}
    )
    assert verdict.endswith(
        "the network adds +0.1000 (95 % interval +0.0500 to +0.1500) of NDCG@10 among all items, seen ones too."
    )


@pytest.mark.parametrize(("validation", "test"), [(0.01, 0.4), (0.4, 0.01), (0.4, 0.4), (0.0, 0.01)])
def test_repeats_among_one_part_of_the_held_out_items_alone_are_said(validation, test):
    metrics = {protocol: {"ndcg@10": 0.5, "hr@10": 0.5} for protocol in ("popular", "full")}
    found = {**SHORT, "repeats": {"validation": validation, "test": test}, "test": metrics}
    said = f"{validation:.0%} of the validation items, but {test:.0%} of the test items are items the user had before"
    for make in (summary.make_table, summary.make_short_table):
        assert (said in make(found)) == (abs(validation - test) > 0.1)


def test_the_summary_reports_cold_targets_even_without_any():
    cold = compute_cold_metrics(np.array([0, 3]), np.array([9, 5]))
    found = summary.make_table({**SHORT, "cold": {"below": 5, **cold}})
    assert "cold: no targets with fewer than 5 training actions" in found
    assert "others: 2 targets with at least 5 training actions: hr@10 1.0000, ndcg@10 0.7153, median rank 2" in found


def test_the_next_command_can_be_pasted(tmp_path):
    items = ["a,b", 'say "x"', "it's"]
    line = summary.make_next_command(tmp_path / "my runs", items, "o'neil, jr")
    program, command, *arguments = shlex.split(line.removeprefix("Next: "))
    options = RecommendOptions(**parse_command("", arguments, list_fields(RecommendOptions)))
    assert (program, command) == ("bert4rec", "recommend")
    assert (options.folder, split_ids(options.history)) == (tmp_path / "my runs", items)
    assert split_ids(options.user) == ["o'neil, jr"]
