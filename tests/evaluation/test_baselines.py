"""The baselines that stand beside every run."""

from types import SimpleNamespace

import pytest

from bert4rec_tf.config import presets
from bert4rec_tf.config.paper import read_paper
from bert4rec_tf.evaluation import baselines
from bert4rec_tf.evaluation.metrics import PROTOCOLS
from bert4rec_tf.runs import driver, summary


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("counted") / "work"
    return driver.execute(presets.make_run("synthetic", "item_transitions"), workdir=folder, silent=True)


def test_item_transitions_stands_beside_itself(finished):
    measured = finished.metrics
    assert measured["test"] == measured["item_transitions"] and set(measured["test"]) == set(PROTOCOLS)
    found = [measured[name]["popular"]["ndcg@10"] for name in ("pop", "item_transitions", "ceiling")]
    assert 4 * found[0] < found[1] < found[2], "the next item depends on the last one"


def test_the_summary_has_it_on_all_protocols_and_older_results_can_be_read(finished):
    lines = summary.make_table(finished.metrics).splitlines()
    column = lines[0].split().index("item_transitions")
    rows = [line.split() for line in lines if line.startswith("ndcg@10")]
    found = [finished.metrics["item_transitions"][protocol]["ndcg@10"] for protocol in PROTOCOLS]
    assert [row[column] for row in rows] == [f"{value:.4f}" for value in found]
    older = {name: value for name, value in finished.metrics.items() if name != "item_transitions"}
    assert summary.make_table(older).splitlines()[0].split() == ["metric", "test", "POP", "random", "ceiling"]


@pytest.mark.parametrize(("model", "published"), [("bert4rec", True), ("item_transitions", False)])
def test_the_paper_has_no_numbers_of_what_it_does_not_measure(model, published):
    sizes = {f"num_{name}": read_paper()["table1"]["beauty"][name] for name in ("users", "items")}
    split = SimpleNamespace(sequences=SimpleNamespace(**sizes))
    assert bool(baselines._read_published(presets.make_run("beauty", model), split)) == published
