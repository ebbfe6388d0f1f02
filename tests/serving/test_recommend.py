"""`bert4rec recommend`: one history, and files of them, killed and resumed."""

import csv
import errno
import functools
import gzip
import json
import os
import sys
import zlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from pyarrow import parquet

from bert4rec_tf.commands import main
from bert4rec_tf.data.sequences import Vocabulary
from bert4rec_tf.export.saved_model import export
from bert4rec_tf.export.service import CHOICES, HISTORIES
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.models import BprMf, Pop
from bert4rec_tf.serving import batch, client

NAMES = ["a,b", 'say "x"', "Ünï", "plain", "c", "d", "e", "f"]
COUNTS = np.arange(len(NAMES), 0, -1)
VOCABULARY = Vocabulary(np.array(NAMES, object), COUNTS)
USERS = ["ann", "bob, jr"]


@pytest.fixture(scope="module", autouse=True)
def loaded_once():
    """every command would load the model again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "LoadedModel", functools.cache(client.LoadedModel))
        yield


@pytest.fixture(scope="module")
def popular(tmp_path_factory):
    model = Pop(len(NAMES))
    model.counts.assign([0, *COUNTS])
    folder = tmp_path_factory.mktemp("pop") / "model"
    export(model, VOCABULARY, folder, 3)
    return folder


@pytest.fixture(scope="module")
def factors(tmp_path_factory):
    keras.utils.set_random_seed(2)
    model = BprMf(len(NAMES), num_users=len(USERS), hidden_dim=4, initializer_stddev=1.0)
    folder = tmp_path_factory.mktemp("factors") / "model"
    export(model, VOCABULARY, folder, 3, USERS)
    return folder, np.asarray(model.score({"users": [0, 1], "items": [[1], [1]], "lengths": [1, 1]}))


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs the command and returns its exit code, what it printed, and its errors."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["bert4rec", "recommend", *map(str, arguments)])
        code = 0
        try:
            main.main()
        except SystemExit as error:
            code = error.code
        return code, *capsys.readouterr()

    return run


def test_one_history(command, popular):
    code, out, err = command(f"--model={popular}", '--history="a,b", plain,nobody', "-k", "4")
    assert code == 0 and "warning: 1 of the 3 ids in the history are unknown" in err
    assert [line.split(maxsplit=2) for line in out.splitlines()] == [
        ["1", "7.0000", 'say "x"'],
        ["2", "6.0000", "Ünï"],
        ["3", "4.0000", "c"],
        ["4", "3.0000", "d"],
    ]


def test_a_home_folder_is_found(command, popular, monkeypatch):
    """A shell leaves the ~ in --model=~/model as it is."""
    monkeypatch.setenv("HOME", str(popular.parent))
    code, out, err = command(f"--model=~/{popular.name}", "--history=c")
    assert (code, err) == (0, "") and out


def test_choices_and_titles(command, popular, tmp_path):
    (tmp_path / "titles.csv").write_text('id,title\n"a,b","The first, of two"\n', encoding="utf-8")
    code, out, _ = command(
        *(f"--model={popular}", '--history="a,b"', "--keep_seen", '--candidates="a,b",c,d,e', "--exclude=d"),
        f"--titles={tmp_path / 'titles.csv'}",
    )
    assert code == 0
    assert [line.split(maxsplit=2)[2] for line in out.splitlines()] == ["The first, of two", "c", "e"]


def test_a_model_that_knows_users_is_told_whom_for(command, factors):
    folder, scores = factors
    _, out, err = command(f"--model={folder}", "--history=", "--user=bob, jr")
    assert err == ""
    best = np.argsort(-scores[1])[:3]
    assert [line.split(maxsplit=2)[2] for line in out.splitlines()] == [NAMES[item] for item in best]
    for user in ("stranger", ""):
        _, out, err = command(f"--model={folder}", "--history=c", f"--user={user}")
        assert [line.split(maxsplit=2)[2] for line in out.splitlines()] == NAMES[:3]
        assert ("this model needs --user" in err) == (user == "")


ROWS = [[f"user {number}", *NAMES[: number % 9], *["nobody"] * (number % 3)] for number in range(100)]


def write(path, rows):
    with gzip.open(path, "wt") if path.suffix == ".gz" else open(path, "w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def oracle(rows, k):
    """POP's recommendations in plain Python."""
    for user, *history in rows:
        left = [(item, count) for item, count in zip(NAMES, COUNTS) if item not in history]
        shares = not any(item in NAMES for item in history)
        for rank, (item, count) in enumerate(left[:k], start=1):
            yield user, rank, item, np.log(count / COUNTS.sum()) if shares else float(count)


def check(found, rows, k):
    expected = list(oracle(rows, k))
    assert [tuple(line[:3]) for line in found] == [(user, rank, item) for user, rank, item, _ in expected]
    np.testing.assert_allclose([line[3] for line in found], [line[3] for line in expected], rtol=1e-6)


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(batch, "BATCH_USERS", 4)
    monkeypatch.setattr(batch, "PART_BATCHES", 3)


def test_a_file_of_histories_as_csv(command, popular, small_parts, tmp_path):
    source = write(tmp_path / "histories.csv.gz", [*ROWS, [], ["bob, jr"]])
    target = tmp_path / "recommendations.csv"
    code, out, _ = command(f"--model={popular}", f"--input={source}", f"--output={target}", "-k", "5")
    assert code == 0 and out == f"{target}: recommendations to 101 users\n"
    with open(target, encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    assert header == ["user", "rank", "item", "score"]
    check([(user, int(rank), item, float(score)) for user, rank, item, score in lines], [*ROWS, ["bob, jr"]], 5)
    assert sorted(path.name for path in tmp_path.iterdir()) == [source.name, target.name]


def test_the_mark_of_the_byte_order_is_no_part_of_the_first_user(command, popular, tmp_path):
    (tmp_path / "histories.csv").write_text("ann,c\nbob,d\n", encoding="utf-8-sig")
    target = tmp_path / "out.csv"
    assert command(f"--model={popular}", f"--input={tmp_path / 'histories.csv'}", f"--output={target}")[0] == 0
    assert [line.split(",")[0] for line in target.read_text().splitlines()[1::3]] == ["ann", "bob"]


def test_a_damaged_packed_file_is_told(tmp_path):
    whole = gzip.compress(b"".join(b"user%d,c,d\n" % number for number in range(99)))
    causes = set()
    for place in range(10, len(whole)):
        (tmp_path / "in.csv.gz").write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        with pytest.raises(UserError, match="cannot be read") as told:
            batch._scan(tmp_path / "in.csv.gz")
        causes.add(type(told.value.__cause__))
    assert {zlib.error, gzip.BadGzipFile} <= causes


def test_what_the_system_refuses_is_told_in_one_line(command, popular, monkeypatch):
    def refused(folder):
        raise PermissionError(errno.EACCES, "Permission denied", "model/saved_model.pb")

    monkeypatch.setattr(client, "SavedRecommender", refused)
    assert command("--history=c", f"--model={popular}") == (2, "", "error: model/saved_model.pb: Permission denied\n")


def test_a_file_of_histories_as_parquet(command, popular, small_parts, tmp_path):
    source, target = write(tmp_path / "histories.csv", ROWS), tmp_path / "recommendations.parquet"
    (tmp_path / "titles.csv").write_text("id,title\nplain,Plain\n")
    arguments = (f"--model={popular}", f"--input={source}", f"--titles={tmp_path / 'titles.csv'}")
    assert command(*arguments, f"--output={target}")[0] == 0
    table = parquet.read_table(target)
    assert {field.name: str(field.type) for field in table.schema} == {
        "user": "string",
        "rank": "int32",
        "item": "string",
        "score": "float",
        "title": "string",
    }
    rows = [tuple(row.values()) for row in table.to_pylist()]
    check([row[:4] for row in rows], ROWS, 3)
    assert {row[4] for row in rows if row[2] == "plain"} == {"Plain"}
    assert {row[4] for row in rows if row[2] != "plain"} == {""}


@pytest.mark.parametrize("correction", [None, 0.0, 0.5, 3.0])
def test_a_file_has_what_the_client_gives_with_this_correction(command, popular, small_parts, tmp_path, correction):
    source, target = write(tmp_path / "histories.csv", ROWS), tmp_path / "out.csv"
    given = [] if correction is None else [f"--popularity_correction={correction}"]
    assert command(f"--model={popular}", f"--input={source}", f"--output={target}", *given)[0] == 0
    users, *histories = zip(*((user, history) for user, *history in ROWS))
    answer = client.SavedRecommender(popular).recommend(
        histories[0], users, client.Choices(popularity_correction=correction)
    )
    expected = [
        [user, str(rank), item, str(score)]
        for user, items, scores in zip(users, answer.items, answer.scores)
        for rank, (item, score) in enumerate(zip(items, scores), start=1)
    ]
    with open(target, encoding="utf-8", newline="") as file:
        assert list(csv.reader(file))[1:] == expected
    _, history, *_ = ROWS[1]
    scores = {
        name: count - (correction or 0) * np.log(count + 1) for name, count in zip(NAMES, COUNTS) if name != history
    }
    assert answer.items[1] == sorted(scores, key=lambda name: -scores[name])[:3]


def test_parts_with_another_correction_are_not_taken(popular, small_parts, tmp_path, capsys, monkeypatch):
    """A job that is killed at the end leaves its parts, and the next one asks for something else."""
    model, source = client.SavedRecommender(popular), write(tmp_path / "in.csv", ROWS)
    target, wanted = tmp_path / "out.csv", tmp_path / "wanted.csv"
    batch.recommend_file(model, source, wanted, client.Choices(popularity_correction=3.0), silent=True)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(batch.CsvWriter, "join", lambda *_: (_ for _ in ()).throw(Killed))
        batch.recommend_file(model, source, target, client.Choices(popularity_correction=0.3), silent=True)
    assert list((tmp_path / ".out.csv.parts").glob("part-*"))
    batch.recommend_file(model, source, target, client.Choices(popularity_correction=3.0), silent=True)
    assert "starting again" in capsys.readouterr().err and target.read_bytes() == wanted.read_bytes()


class Older(tf.Module):
    """An export from before there was such an input."""

    def __init__(self, newer):
        super().__init__()
        self.newer = newer

    @tf.function(input_signature=[HISTORIES, *CHOICES[:4]])
    def recommend(self, histories, k, exclude_seen, exclude, candidates):
        return self.newer.recommend(histories, k, exclude_seen, exclude, candidates)


def test_an_older_export_works_and_says_that_it_cannot_correct(command, popular, tmp_path):
    older = Older(tf.saved_model.load(str(popular)))
    tf.saved_model.save(older, str(tmp_path / "older"), signatures={"recommend": older.recommend})
    source, target = write(tmp_path / "in.csv", ROWS[:3]), tmp_path / "out.csv"
    asked = (["--history=c"], [f"--input={source}", f"--output={target}"])
    for arguments in asked:
        wanted = command(f"--model={popular}", *arguments, "-k", "3")
        written = target.read_bytes() if target.exists() else None
        assert command(f"--model={tmp_path / 'older'}", *arguments, "-k", "3") == wanted and wanted[0] == 0
        assert written is None or target.read_bytes() == written
    for arguments in asked:
        code, out, err = command(f"--model={tmp_path / 'older'}", *arguments, "--popularity_correction=0.3")
        assert (code, out) == (2, "") and err.count("\n") == 1
        assert "is an older export without `popularity_correction`" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "older", "out.csv"]


class Killed(BaseException):
    """Ends the work as a kill does; no part of the package knows it."""


@pytest.mark.parametrize(("ending", "asks"), [("csv", 1), ("csv", 7), ("csv", 24), ("parquet", 7)])
def test_a_killed_work_goes_on_and_ends_with_the_same_bytes(popular, small_parts, tmp_path, monkeypatch, ending, asks):
    model, source = client.SavedRecommender(popular), write(tmp_path / "histories.csv", ROWS)
    whole, target = tmp_path / f"whole.{ending}", tmp_path / f"killed.{ending}"
    choices = client.Choices(k=4)
    batch.recommend_file(model, source, whole, choices, silent=True)
    recommend, asked = client.SavedRecommender.recommend, []

    def counted(self, histories, users, choices):
        asked.append(len(histories))
        if len(asked) == asks + 1:
            raise Killed
        return recommend(self, histories, users, choices)

    monkeypatch.setattr(client.SavedRecommender, "recommend", counted)
    with pytest.raises(Killed):
        batch.recommend_file(model, source, target, choices, silent=True)
    parts = tmp_path / f".killed.{ending}.parts"
    (parts / ".part-000003.4242.partial").write_bytes(b"what a killed process had begun")
    assert not target.exists()
    batch.recommend_file(model, source, target, choices, silent=True)
    assert target.read_bytes() == whole.read_bytes()
    # The batches of finished parts are not asked for again: 25 in all, 3 for each part.
    assert len(asked) == asks + 1 + 25 - asks // 3 * 3
    assert not parts.exists()


def test_parts_of_another_job_are_not_taken(popular, small_parts, tmp_path, capsys):
    model, target = client.SavedRecommender(popular), tmp_path / "out.csv"
    parts = tmp_path / ".out.csv.parts"
    parts.mkdir()
    (parts / "job.json").write_text(json.dumps({"source": "another"}))
    (parts / "part-000000").write_text("user 0,1,old,1.0\n")
    batch.recommend_file(model, write(tmp_path / "in.csv", ROWS), target, client.Choices(), silent=True)
    assert "old" not in target.read_text() and "starting again" in capsys.readouterr().err


def test_an_empty_file_gives_a_header(popular, tmp_path):
    model, target = client.SavedRecommender(popular), tmp_path / "out.csv"
    assert batch.recommend_file(model, write(tmp_path / "in.csv", []), target, client.Choices(), silent=True) == 0
    assert target.read_text() == "user,rank,item,score\n"


MISTAKES = {
    "nothing asked": ([], "Give either --history, or both --input and --output"),
    "both": (["--history=a", "--input=in.csv", "--output=o.csv"], "Give either --history, or both --input"),
    "no output": (["--input=in.csv"], "Give either --history, or both --input"),
    "k": (["--history=a", "-k", "0"], "`k` must be at least 1 and less than 2^31. Received: k=0"),
    "correction": (
        ["--history=a", "--popularity_correction=-1"],
        "`popularity_correction` must be at least 0 and finite. Received: popularity_correction=-1.0",
    ),
    "no number": (["--history=a", "-k", "ten"], "argument -k: invalid int value: 'ten'"),
    "no model": (["--history=a", "--model=none"], "none/saved_model.pb: cannot be read"),
    "model of nobody": (
        ["--history=a", "--model=~nobody-at-all/x"],
        "argument --model: ~nobody-at-all/x: no such user",
    ),
    "ending": (["--input=in.csv", "--output=out.txt"], "--output must end in .csv or .parquet. Received: out.txt"),
    "ending before the model": (["--model=none", "--input=in.csv", "--output=out.txt"], "--output must end in .csv"),
    "no folder": (["--input=in.csv", "--output=no/out.csv"], "no: is not a folder"),
    "no input": (["--input=none.csv", "--output=out.csv"], "none.csv: cannot be read (No such file or directory)"),
    "no text": (["--input=bad.csv", "--output=out.csv"], "bad.csv:2: is not CSV in UTF-8"),
    "two lines": (["--history=a\r1"], "Ids must be separated by commas on one line"),
    "no CSV": (["--input=quote.csv", "--output=out.csv"], "quote.csv:2: is not CSV in UTF-8"),
    "no titles": (["--history=a", "--titles=none.csv"], "none.csv: cannot be read (No such file or directory)"),
    "bad titles": (
        ["--history=a", "--titles=in.csv"],
        "in.csv: the first line must be a header with the columns `id` (or `item`",
    ),
}


@pytest.mark.parametrize("arguments, message", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_end_in_one_line(command, popular, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.csv").write_text("a\n")
    (tmp_path / "bad.csv").write_bytes(b"u,a\nu,\xff\n")
    (tmp_path / "quote.csv").write_text('u,a\nu,"a"b\n')
    arguments = arguments if any(one.startswith("--model") for one in arguments) else [f"--model={popular}", *arguments]
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}") and err.count("\n") == 1
    assert not os.path.exists("out.csv")
