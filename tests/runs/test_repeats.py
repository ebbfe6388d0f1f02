"""Data whose users come back to items: what is measured, what is recommended by default, and how to change it."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from support.exports import VOCABULARY
from support.http_server import Server
from support.profiles import slow_but
from support.ranking_oracle import make_sequences, plain_metrics, plain_ranks

import bert4rec_tf as b4r
from bert4rec_tf.commands import recommend, summary
from bert4rec_tf.config.presets import make_run
from bert4rec_tf.evaluation.metrics import ANY, FULL, NEW, PROTOCOLS
from bert4rec_tf.export import saved_model
from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.foundation import npz, plots
from bert4rec_tf.models.pop import Pop
from bert4rec_tf.runs import exporting
from bert4rec_tf.runs.experiment import open_experiment
from bert4rec_tf.runs.folder import WorkDirectory
from bert4rec_tf.serving.client import Choices, SavedRecommender
from bert4rec_tf.serving.http.app import open_versions
from bert4rec_tf.serving.http.server_settings import ServerSettings

pytestmark = pytest.mark.usefixtures("quick")

NUM_USERS, NUM_ITEMS = 40, 30


def histories(num_repeating):
    """The last three actions of so many users repeat their first three; the others' are new to them."""
    found = []
    for user in range(NUM_USERS):
        items = [(7 * user + 3 * place) % NUM_ITEMS for place in range(7)]
        found.append([*items[:4], *items[:3]] if user < num_repeating else items)
    return found


def frame(num_repeating):
    rows = [
        (f"u{user}", f"i{item}", place)
        for user, history in enumerate(histories(num_repeating))
        for place, item in enumerate(history)
    ]
    return pd.DataFrame(rows, columns=["user_id", "item_id", "timestamp"])


def experiment(folder, num_repeating, later=None, **settings):
    """A run of POP. `later`: how many of each user's last actions come after a split by time."""
    sequences = make_sequences([np.array(one) + 1 for one in histories(num_repeating)], NUM_ITEMS)
    if later is not None:
        sequences = replace(sequences, num_later=np.full(NUM_USERS, later))
    return open_experiment(make_run("synthetic", "pop", **settings), sequences, folder, silent=True)


def measured(one):
    one.prepare()
    return one.evaluate(one.train())


@pytest.mark.parametrize("later", slow_but([None], [None, 2]), ids=["leave one out", "split by time"])
def test_both_protocols_are_measured_for_the_model_and_the_baselines(tmp_path, later):
    one = experiment(tmp_path / "work", 10, later)
    content = measured(one)
    assert content["repeats"] == {"validation": 0.25, "test": 0.25}
    assert set(content["test"]) == {*PROTOCOLS, NEW, ANY}
    task = one.make_task("test", all_items=True)
    counts = task.histories.count_items().tolist()
    expected = plain_ranks(task, lambda user, history, item: counts[item])
    every, unseen = expected[ANY], expected[FULL]
    for protocol, ranks in ((ANY, every), (FULL, unseen), (NEW, unseen[10:])):
        found = {name: content["test"][protocol][name] for name in plain_metrics([0])}
        assert found == pytest.approx(plain_metrics(ranks))
        for ranker in ("item_transitions", "random"):
            assert 0 <= content[ranker][protocol]["ndcg@10"] <= 1
    assert content["pop"] == content["test"]
    chances = [plain_metrics(range(NUM_ITEMS))["ndcg@10"], content["random"][ANY]["ndcg@10"]]
    assert chances[0] == pytest.approx(chances[1])
    ranks = npz.read(one.workdir.ranks, (ANY, FULL, "is_repeat"))
    assert ranks[ANY].tolist() == every and ranks["is_repeat"].tolist() == [True] * 10 + [False] * 30
    shown = summary.make_table(content)
    assert "25 % of the validation items are items the user had before, so the model recommends seen items too" in shown
    assert "among all items, seen ones too" in shown and "without the targets that are repeats" in shown


def test_the_verdict_and_the_first_rows_are_by_what_is_recommended(tmp_path):
    content = measured(experiment(tmp_path / "work", 10))
    first, second = (content[name][ANY]["ndcg@10"] for name in ("item_transitions", "test"))
    verdict = content["beyond_counting"]
    assert (verdict["protocol"], verdict["first"], verdict["second"]) == (ANY, first, second)
    rows = summary.make_short_table(content).splitlines()[2:5]
    assert [row[:26] == "all items, seen ones too  " for row in rows] == [True, True, False]
    assert [float(row.split()[-2]) for row in rows[:2]] == pytest.approx([second, first], abs=6e-5)
    assert next(line for line in summary.make_table(content).splitlines() if line.startswith("among")) == (
        "among all items, seen ones too"
    )
    unseen = measured(experiment(tmp_path / "unseen", 0))
    assert unseen["beyond_counting"]["second"] == unseen["test"][FULL]["ndcg@10"]
    assert "protocol" not in unseen["beyond_counting"]


def test_few_repeats_are_measured_apart_and_seen_items_stay_excluded(tmp_path):
    one = experiment(tmp_path / "work", 2)
    content = measured(one)
    assert content["repeats"]["validation"] == 0.05 and set(content["test"]) == {*PROTOCOLS, NEW}
    assert "seen ones too" not in summary.make_table(content) and "had before" not in summary.make_table(content)
    assert card_of(exporting.export(one.workdir))["exclude_seen"] is True


def test_without_repeats_nothing_else_is_measured(tmp_path):
    one = experiment(tmp_path / "work", 0)
    content = measured(one)
    assert content["repeats"] == {"validation": 0.0, "test": 0.0} and set(content["test"]) == set(PROTOCOLS)
    kept = npz.read(one.workdir.ranks)
    by_protocol = {*PROTOCOLS, *(f"{protocol}_candidates" for protocol in PROTOCOLS)}
    assert set(kept) == {"users", *by_protocol, "counted", "lengths", "target_counts"}


def card_of(folder):
    return json.loads((folder / "assets.extra" / "model_card.json").read_text())


@pytest.fixture(scope="module")
def repeating():
    return b4r.fit(frame(NUM_USERS // 2), model="item_transitions", silent=True)


def test_the_figure_is_of_what_is_recommended(repeating, monkeypatch):
    pytest.importorskip("matplotlib", reason="the extra [plots] is not installed")
    monkeypatch.setattr(plots, "is_available", lambda: True)
    figure = repeating.plot()
    lines = [axes.lines[0] for axes in figure.axes if axes.get_xlabel() == "actions in the history"]
    assert lines[0].get_ydata() == pytest.approx([repeating.metrics["test"][ANY]["ndcg@10"]])
    assert figure.get_suptitle().endswith("NDCG@10 among all items")


def command(capsys, model, *flags):
    recommend.main([f"--model={model}", "--user=u0", "-k", f"{NUM_ITEMS}", *flags])
    return {line.split()[1] for line in capsys.readouterr().out.splitlines()[1:]}


def test_seen_items_are_recommended_if_users_repeat_items(repeating, capsys):
    seen = {f"i{item}" for item in histories(NUM_USERS // 2)[0]}
    assert repeating.metrics["repeats"]["validation"] == 0.5
    assert repr(repeating).splitlines()[1].startswith("  NDCG@10 among all items: ")
    assert repeating.saved.card["exclude_seen"] is False
    every = {f"i{item}" for item in range(NUM_ITEMS)}
    assert set(repeating.recommend(user="u0", k=NUM_ITEMS)["item"]) == every
    assert set(repeating.recommend(user="u0", k=NUM_ITEMS, exclude_seen=True)["item"]) == every - seen
    assert set(repeating.recommend_all(["u0"], NUM_ITEMS, silent=True)["item"]) == every
    assert set(repeating.recommend_all(["u0"], NUM_ITEMS, silent=True, exclude_seen=True)["item"]) == every - seen
    assert command(capsys, repeating.workdir) == command(capsys, repeating.workdir, "--keep_seen") == every
    assert command(capsys, repeating.workdir, "--no-keep_seen") == every - seen
    with Server(open_versions(ServerSettings(model=str(repeating.workdir)))) as server:
        inputs = {"users": ["u0"], "k": NUM_ITEMS}
        for choices, expected in (({}, every), ({"exclude_seen": True}, every - seen)):
            answer = server.client().predict(signature_name="recommend", inputs={**inputs, **choices})["outputs"]
            assert set(answer["items"][0]) - {""} == expected
        (first,) = server.client().predict(instances=[{"users": "u0"}])["predictions"]
        assert set(first["items"]) & seen


def test_new_actions_are_measured_among_every_item_too(repeating):
    later = pd.DataFrame([("u0", "i0", 9), ("u1", "i29", 9)], columns=["user_id", "item_id", "timestamp"])
    found = repeating.evaluate(later)
    assert set(found) == {*PROTOCOLS, NEW, ANY}


def test_new_actions_of_a_user_are_not_ranked_against_each_other(repeating):
    known = histories(NUM_USERS // 2)[0]
    others = [item for item in range(NUM_ITEMS) if item not in known]
    later = [*others[:6], known[1]]
    table = pd.DataFrame([("u0", f"i{item}", 9) for item in later], columns=["user_id", "item_id", "timestamp"])
    listed = repeating.recommend(user="u0", k=NUM_ITEMS)
    scores = {int(name[1:]): score for name, score in zip(listed["item"], listed["score"])}
    ranks = repeating.evaluate(table, per_user=True).set_index("item")["rank"]
    for item in later:
        rivals = {*range(NUM_ITEMS)} - ({*later} - {*known}) - {item}
        assert ranks[f"i{item}"] == 1 + sum(scores[rival] >= scores[item] for rival in rivals)


@pytest.mark.slow
def test_the_export_s_default_for_seen_items_can_be_set(repeating, tmp_path):
    workdir = WorkDirectory(repeating.workdir)
    folder = exporting.export(workdir, tmp_path / "model", ExportOptions(NUM_ITEMS, exclude_seen=True))
    answer = SavedRecommender(folder).recommend([["i0", "i3"]], [], Choices())
    assert not {"i0", "i3"} & set(answer.items[0]) and card_of(folder)["exclude_seen"] is True


def test_seen_items_are_left_out_of_a_model_without_a_run(tmp_path):
    saved_model.export(Pop(VOCABULARY.num_items), VOCABULARY, tmp_path / "model")
    assert card_of(tmp_path / "model")["exclude_seen"] is True
