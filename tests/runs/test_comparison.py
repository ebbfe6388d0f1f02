"""Two work directories compared user by user, as a function and as a command."""

import numpy as np
import pytest
from support.commands import console, refused
from support.ranking_oracle import make_sequences

from bert4rec_tf.commands.summary import make_comparison_table, make_metrics_table
from bert4rec_tf.config.model_settings import ITEM_FEATURES
from bert4rec_tf.config.run_record import Run
from bert4rec_tf.data.feature_values import Features, attach_features
from bert4rec_tf.evaluation.metrics import ANY, FULL, METRICS, PROTOCOLS, compute_difference, compute_per_user
from bert4rec_tf.foundation import npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.runs.comparison import compare, measure
from bert4rec_tf.runs.folder import RawIds, WorkDirectory

NUM_USERS = 40


def data(seed=0):
    rng = np.random.default_rng(seed)
    return make_sequences([rng.integers(1, 10, size=4) for _ in range(NUM_USERS - 1)] + [np.arange(1, 10)], 9)


def some_ranks(seed):
    rng = np.random.default_rng(seed)
    return {protocol: rng.integers(12, size=NUM_USERS).astype(np.int32) for protocol in PROTOCOLS}


def work_directory(path, ranks, sequences=None, repeats=0.0, **settings):
    folder = WorkDirectory(path)
    sequences = sequences or data()
    ids = RawIds(sequences.vocabulary, sequences.count_items()[1:])
    folder.initialize(Run.make("synthetic", **settings), sequences, ids, {}, repeats={"validation": repeats})
    if ranks is not None:
        npz.write(folder.ranks, {"users": np.arange(NUM_USERS), **ranks})
    return folder


@pytest.fixture
def first(tmp_path):
    return work_directory(tmp_path / "first", some_ranks(1))


@pytest.fixture
def second(tmp_path):
    return work_directory(tmp_path / "second", some_ranks(2), model="pop", seed=7)


def assert_refused(first, second, message):
    for one, other in ((first, second), (second, first)):
        with pytest.raises(UserError, match=message):
            compare(one.path, other.path)


# The function


def test_every_metric_of_every_protocol_is_compared_user_by_user(first, second):
    found = compare(first.path, second.path)
    assert list(found) == list(PROTOCOLS)
    for protocol, differences in found.items():
        ranks = [some_ranks(seed)[protocol] for seed in (1, 2)]
        for name in METRICS:
            assert differences[name] == compute_difference(*(compute_per_user(name, of_run) for of_run in ranks))
    assert len({difference.mean for protocol in PROTOCOLS for difference in found[protocol].values()}) > 10


def test_runs_that_recommend_seen_items_are_compared_among_all_items_first(first, tmp_path):
    ranks = [{**some_ranks(seed), ANY: some_ranks(seed + 2)[FULL]} for seed in (1, 2)]
    one, other = (work_directory(tmp_path / str(seed), ranks[seed], repeats=0.5, seed=seed) for seed in (0, 1))
    found = compare(one.path, other.path)
    assert list(found) == list(measure(one.path)) == [ANY, *PROTOCOLS]
    gains = [compute_per_user("ndcg@10", of_run[ANY]) for of_run in ranks]
    assert found[ANY]["ndcg@10"] == compute_difference(*gains)
    assert list(compare(one.path, first.path)) == list(compare(first.path, one.path)) == list(PROTOCOLS)
    table = make_comparison_table(found, 100).splitlines()
    assert table[1] == "among all items, seen ones too" and table[2].split()[1] == f"{found[ANY]['hr@1'].first:.4f}"
    assert make_metrics_table(measure(one.path), 100).splitlines()[1] == table[1]


@pytest.mark.parametrize("settings", [{"num_negatives": 50}, {"candidates_seed": 1}], ids=str)
def test_runs_on_other_candidates_are_refused(first, tmp_path, settings):
    other = work_directory(tmp_path / "other", some_ranks(2), **settings)
    assert_refused(first, other, "cannot be compared: their candidates differ")


def with_features(name, extra=()):
    ids = [*data().vocabulary.items.tolist(), *extra]
    features = Features(np.array(ids, object), np.arange(len(ids) + 1), np.zeros(len(ids), np.int32), np.array([name]))
    return attach_features(data(), {ITEM_FEATURES: features})


def test_runs_whose_features_differ_are_compared(first, tmp_path):
    one, other = (work_directory(tmp_path / name, some_ranks(2), with_features(name)) for name in ("one", "other"))
    assert "actions_fingerprint" not in first.config.read_text()
    for pair in ((first, one), (one, other), (other, first)):
        assert list(compare(*(folder.path for folder in pair))) == list(PROTOCOLS)
    more = work_directory(tmp_path / "more", some_ranks(2), with_features("one", extra=["new"]))
    changed = work_directory(tmp_path / "changed", some_ranks(2), data(seed=1))
    for folder in (more, changed):
        assert_refused(one, folder, "cannot be compared: their data differ, perhaps by --new_items")


def test_ranks_of_other_users_are_refused(first, tmp_path):
    ranks = {protocol: np.zeros(NUM_USERS + 5, np.int32) for protocol in PROTOCOLS}
    other = work_directory(tmp_path / "other", ranks)
    assert_refused(first, other, "Both runs must have measured the same users")


# The command


def run_command(first, second):
    return console("compare", str(first), str(second), cwd=first.parent)


def test_the_command_prints_a_table(first, second):
    ended = run_command(first.path, second.path)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = [line.split() for line in ended.stdout.splitlines()]
    assert lines[0] == ["metric", "first", "second", "difference", "low", "high", "p"]
    headings = [line for line in ended.stdout.splitlines() if line.startswith("among")]
    assert headings == ["among 100 popular items", "among 100 uniform items", "among all unseen items"]
    rows = [line for line in lines if line and line[0] in METRICS]
    found = compare(first.path, second.path)
    for row, (protocol, name) in zip(rows, [(one, other) for one in PROTOCOLS for other in METRICS], strict=True):
        difference = found[protocol][name]
        numbers = [difference.first, difference.second, difference.mean, difference.low, difference.high]
        assert row[0] == name
        assert [float(cell) for cell in row[1:6]] == pytest.approx(numbers, abs=6e-5)
        assert float(row[6]) == pytest.approx(difference.p_value, rel=0.06)


def test_the_command_compares_at_any_cutoff(first, second):
    ended = console("compare", str(first.path), str(second.path), "--k=3,7", cwd=first.path.parent)
    names = [line.split()[0] for line in ended.stdout.splitlines()[2:13]]
    assert names == [*(f"{kind}@{k}" for kind in ("hr", "ndcg", "map", "precision", "recall") for k in (3, 7)), "mrr"]
    wrong = console("compare", str(first.path), str(second.path), "--k=0", cwd=first.path.parent)
    assert_mistake(wrong, "`k` must be integers of at least 1")


def test_the_command_shows_one_run_at_any_cutoff(first):
    """Its means are those of ranks below the cut-off, among popular items first."""
    ended = console("compare", str(first.path), "--k=3", cwd=first.path.parent)
    rows = [line.split() for line in ended.stdout.splitlines()]
    hits = [np.mean(npz.read(first.ranks)[protocol] < 3) for protocol in PROTOCOLS]
    assert rows[0] == ["metric", "test"]
    assert [row[1] for row in rows if row[0] == "hr@3"] == [f"{share:.4f}" for share in hits]


def assert_mistake(ended, message):
    assert message in refused(ended) and not ended.stdout and ended.stderr.count("\n") == 1


def test_mistakes_in_the_folders_end_in_one_line(first, second, tmp_path):
    assert_mistake(run_command(first.path, tmp_path / "nowhere"), "nowhere: no work directory")
    assert_mistake(console("compare", cwd=tmp_path), "FIRST is required")
    other = work_directory(tmp_path / "other", some_ranks(2), data(seed=1))
    assert_mistake(run_command(first.path, other.path), "their data differ")
    second.ranks.write_bytes(b"ranks")
    assert_mistake(run_command(first.path, second.path), "ranks-test.npz: cannot be read")
    second.ranks.unlink()
    assert_mistake(run_command(first.path, second.path), "has not been evaluated")
