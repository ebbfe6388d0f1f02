"""Two work directories compared user by user, as a function and as a command."""

import json
import sys

import numpy as np
import pytest
from support.ranking_oracle import make_sequences, plain_metrics

from bert4rec_tf.commands import main
from bert4rec_tf.config.run_record import Run
from bert4rec_tf.evaluation.metrics import METRICS, PROTOCOLS
from bert4rec_tf.foundation import npz
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.runs.comparison import compare
from bert4rec_tf.runs.workdir import WorkDirectory

NUM_USERS = 40


def data(seed=0):
    rng = np.random.default_rng(seed)
    return make_sequences([rng.integers(1, 10, size=4) for _ in range(NUM_USERS - 1)] + [np.arange(1, 10)], 9)


def some_ranks(seed):
    rng = np.random.default_rng(seed)
    return {protocol: rng.integers(12, size=NUM_USERS).astype(np.int32) for protocol in PROTOCOLS}


def work_directory(path, ranks, sequences=None, **settings):
    folder = WorkDirectory(path)
    folder.initialize(Run.make("synthetic", **settings), sequences or data(), {})
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
        assert list(differences) == list(METRICS)
        ranks, others = some_ranks(1)[protocol].tolist(), some_ranks(2)[protocol].tolist()
        for name, difference in differences.items():
            gains = [
                plain_metrics([other])[name] - plain_metrics([rank])[name]
                for rank, other in zip(ranks, others, strict=True)
            ]
            error = np.std(gains, ddof=1) / NUM_USERS**0.5
            assert difference.first == pytest.approx(plain_metrics(ranks)[name])
            assert difference.second == pytest.approx(plain_metrics(others)[name])
            assert difference.mean == pytest.approx(sum(gains) / NUM_USERS)
            assert difference.high - difference.low == pytest.approx(2 * 1.96 * error)
            assert 0 < difference.p_value <= 1
    assert len({difference.mean for protocol in PROTOCOLS for difference in found[protocol].values()}) > 10


def test_a_run_is_as_good_as_itself(first):
    for differences in compare(first.path, first.path).values():
        assert {(found.mean, found.low, found.high, found.p_value) for found in differences.values()} == {(0, 0, 0, 1)}


def test_runs_on_other_data_are_refused(first, tmp_path):
    other = work_directory(tmp_path / "other", some_ranks(2), data(seed=1))
    assert_refused(first, other, "cannot be compared: their data differ")


@pytest.mark.parametrize("settings", [{"num_negatives": 50}, {"candidates_seed": 1}], ids=str)
def test_runs_on_other_candidates_are_refused(first, tmp_path, settings):
    other = work_directory(tmp_path / "other", some_ranks(2), **settings)
    assert_refused(first, other, "cannot be compared: their candidates differ")


def test_a_run_that_has_not_been_evaluated_is_refused(first, tmp_path):
    other = work_directory(tmp_path / "other", None)
    assert_refused(first, other, "other: has not been evaluated; run with --mode=evaluate first")


def flip(content):
    place = len(content) // 3
    return content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]


@pytest.mark.parametrize("damage", [flip, lambda content: content[:-9], lambda content: b""], ids=["bit", "end", "all"])
def test_damaged_ranks_are_refused(first, second, damage):
    path = second.ranks
    path.write_bytes(damage(path.read_bytes()))
    assert_refused(first, second, "ranks-test.npz: cannot be read")


def test_ranks_without_a_protocol_are_refused(first, tmp_path):
    ranks = some_ranks(2)
    del ranks[PROTOCOLS[-1]]
    assert_refused(first, work_directory(tmp_path / "other", ranks), "ranks-test.npz: cannot be read")


def test_folders_that_are_no_work_directories_are_refused(first, tmp_path):
    (tmp_path / "file").write_text("text")
    (tmp_path / "empty").mkdir()
    for name in ("nowhere", "empty", "file"):
        assert_refused(first, WorkDirectory(tmp_path / name), f"{name}: no work directory")


def test_a_broken_configuration_is_refused(first, second):
    second.config.write_text("{")
    assert_refused(first, second, "not the configuration of a run")


def test_a_work_directory_of_another_version_is_refused(first, second):
    second.config.write_text(json.dumps({**second.read_config(), "format": 999}))
    assert_refused(first, second, "made by another version of this program")


def test_ranks_of_other_users_are_refused(first, tmp_path):
    ranks = {protocol: np.zeros(NUM_USERS + 5, np.int32) for protocol in PROTOCOLS}
    other = work_directory(tmp_path / "other", ranks)
    assert_refused(first, other, "Both runs must have measured the same users")


def test_a_configuration_without_a_run_is_refused(first, second):
    path = second.config
    path.write_text(json.dumps({**json.loads(path.read_text()), "run": {}}))
    assert_refused(first, second, "model")


def test_too_few_users_are_refused(tmp_path):
    few = {protocol: found[:29] for protocol, found in some_ranks(1).items()}
    folders = [work_directory(tmp_path / name, few) for name in ("first", "second")]
    assert_refused(*folders, "At least 30 users")


# The command


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs the command line, and returns its exit code and what it printed to stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["bert4rec", *map(str, arguments)])
        try:
            main.main()
        except SystemExit as end:
            return end.code, *capsys.readouterr()
        return 0, *capsys.readouterr()

    return run


def test_the_command_prints_a_table(first, second, command):
    code, out, err = command("compare", first.path, second.path)
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["metric", "first", "second", "difference", "low", "high", "p"]
    headings = [line for line in out.splitlines() if line.startswith("among")]
    assert headings == ["among 100 popular items", "among 100 uniform items", "among all unseen items"]
    rows = [line for line in lines if line and line[0] in METRICS]
    found = compare(first.path, second.path)
    for row, (protocol, name) in zip(rows, [(one, other) for one in PROTOCOLS for other in METRICS], strict=True):
        difference = found[protocol][name]
        numbers = [difference.first, difference.second, difference.mean, difference.low, difference.high]
        assert row[0] == name
        assert [float(cell) for cell in row[1:6]] == pytest.approx(numbers, abs=6e-5)
        assert float(row[6]) == pytest.approx(difference.p_value, rel=0.06)


def test_the_command_names_how_many_candidates_there_are(tmp_path, command):
    folders = [work_directory(tmp_path / name, some_ranks(1), num_negatives=7).path for name in ("first", "second")]
    assert "among 7 popular items" in command("compare", *folders)[1]


def assert_mistake(result, message):
    code, out, err = result
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("error: ") and message in line


def test_mistakes_in_the_folders_end_in_one_line(first, second, tmp_path, command):
    assert_mistake(command("compare", first.path, tmp_path / "nowhere"), "nowhere: no work directory")
    other = work_directory(tmp_path / "other", some_ranks(2), data(seed=1))
    assert_mistake(command("compare", first.path, other.path), "their data differ")
    second.ranks.write_bytes(b"ranks")
    assert_mistake(command("compare", first.path, second.path), "ranks-test.npz: cannot be read")
    second.ranks.unlink()
    assert_mistake(command("compare", first.path, second.path), "has not been evaluated")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: first, second"),
        (["here"], "required: second"),
        (["here", "there", "everywhere"], "unrecognized arguments: everywhere"),
        (["here", "there", "--metric=mrr"], "unrecognized arguments: --metric=mrr"),
    ],
    ids=str,
)
def test_mistakes_in_the_arguments_end_in_one_line(command, arguments, message):
    assert_mistake(command("compare", *arguments), message)


def test_the_command_tells_what_it_wants(command):
    code, out, err = command("compare", "--help")
    assert (code, err) == (0, "")
    assert "bert4rec compare" in out and "first" in out and "second" in out
