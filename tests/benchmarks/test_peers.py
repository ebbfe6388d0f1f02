"""A small program takes the place of a package's interpreter. Installed packages are tried on generated data."""

import importlib.util
import json
import math
import sys

import numpy as np
import pytest
from support.paths import ROOT
from support.ranking_oracle import make_sequences

from benchmarks import peers
from bert4rec_tf.data.sequences import LeaveOneOut

STAND_IN = f"""#!{sys.executable}
import json, sys
import numpy as np

known = np.load("known.npz")
users, items = known["users"], known["items"]
assert np.bincount(users).tolist() == [3, 4, 2] and sorted(set(items.tolist())) == [0, 1, 2, 3]
lists = np.full([3, 10], -1)
for user in range(3):
    unseen = np.setdiff1d(items, items[users == user])
    lists[user, :len(unseen)] = unseen
np.save("lists.npy", lists)
print("a greeting")
print(json.dumps({{"processor": 5.0, "memory": 2e9, "rate": 3e9, "package": sys.argv[2], "settings": "few"}}))
"""

ROWS = "user,item,time\n" + "".join(
    f"{user},{item},{time}\n"
    for user, items in {"a": "wxyz", "b": "wxyzv", "c": "ywx"}.items()
    for time, item in enumerate(items)
)
"""Without the last actions, a has w, x and y, so that z is left, the test item; b has everything but v, its test item,
which nobody else has; c has y and w, so that x, the test item, and z are left."""


@pytest.fixture
def interpreter(tmp_path, monkeypatch):
    (tmp_path / "rows.csv").write_text(ROWS)
    monkeypatch.setenv("BERT4REC_DATA", str(tmp_path))
    monkeypatch.setitem(peers.DATA, "few", "rows.csv")
    program = tmp_path / "python"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    return str(program)


def test_lists_are_measured_on_the_last_actions_and_a_second_call_adds_its_rows(interpreter, tmp_path):
    output = tmp_path / "out"
    peers.measure({"implicit": interpreter}, ["implicit BM25"], ["few"], 1, output)
    peers.measure(
        {"implicit": interpreter, "recbole": "/bin/false"}, ["RecBole BERT4Rec", "implicit ALS"], ["few"], 1, output
    )
    rows = json.loads((output / "peers.json").read_text())
    assert [row["model"] for row in rows] == ["implicit ALS", "implicit BM25", "RecBole BERT4Rec"]
    assert rows[0]["hr@10"] == pytest.approx(2 / 3) and rows[0]["package"] == "implicit ALS"
    assert rows[0]["ndcg@10"] in [pytest.approx((1 + gain) / 3) for gain in (1, 1 / math.log2(3))]
    assert rows[2] == {"data": "few", "model": "RecBole BERT4Rec", "skipped": "exit code 1"}
    lines = (output / "peers.md").read_text().splitlines()
    assert lines[2].endswith(" | 0.6667 | 5 | 2.0 | 3 | few |") and lines[4].endswith("skipped: exit code 1 |")


@pytest.mark.parametrize("items", [[4, 4], [4, 1]])
def test_lists_with_a_seen_item_or_one_twice_are_refused(items):
    peers.check_lists(np.array([[4, 5, -1, -1]]), np.array([0, 1]), np.array([1, 4]))
    with pytest.raises(ValueError, match=f"different unseen items. Received: user 0, item {items[1]}"):
        peers.check_lists(np.array([[*items, -1, -1]]), np.array([0, 1]), np.array([1, 4]))


def test_the_tables_in_the_documentation_are_those_of_the_results():
    rows = json.loads((ROOT / "docs" / "benchmarks" / "peers.json").read_text())
    journal, page = ((ROOT / name).read_text("utf-8") for name in ("experiments/journal/peers.md", "docs/results.md"))
    assert f"\n\n{peers.format_table(rows)}\n" in journal
    for model in {row["model"] for row in rows}:
        cells = []
        for data in ("beauty-5core", "ml-latest-small"):
            (row,) = [one for one in rows if (one["data"], one["model"]) == (data, model)] or [None]
            cells += [f"{row['ndcg@10']:.4f}", f"{row['processor']:,.0f}"] if row else ["", ""]
        line = f"{model} |{''.join(f' {cell} |' if cell else ' |' for cell in cells)}"
        assert f"| {line}\n" in page or f", {line}\n" in page


@pytest.mark.slow
@pytest.mark.parametrize("model", [model for model in peers.MODELS if model not in ("SASRec", "BERT4Rec")])
def test_a_package_s_model_lists_what_comes_next(model, tmp_path):
    """Each user has eight items that follow each other on a circle of 60."""
    if importlib.util.find_spec(peers.MODELS[model][0]) is None:
        pytest.skip(f"{peers.MODELS[model][0]} is not installed")
    starts = np.random.default_rng(3).integers(60, size=600)
    split = LeaveOneOut(make_sequences([1 + (start + np.arange(8)) % 60 for start in starts], 60))
    row = peers.run_model(model, split, sys.executable, 0.2, tmp_path)
    assert "skipped" not in row, row
    assert row["hr@10"] > 0.8 and row["processor"] > 0, row
