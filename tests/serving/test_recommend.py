"""`bert4rec recommend`: one history, and files of them, killed and resumed."""

import csv
import gzip
import shutil
import unicodedata

import keras
import numpy as np
import pandas
import pyarrow as pa
import pyarrow.csv
import pytest
from pyarrow import parquet
from support import models
from support.commands import console
from support.exports import AWKWARD
from support.trainings import Killed

from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.data.reading import conversion
from bert4rec_tf.data.sequences import Sequences, Vocabulary
from bert4rec_tf.export.histories import HISTORIES, write_histories
from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.export.saved_model import export
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.processes import get_host_code
from bert4rec_tf.foundation.warning import FileWarning
from bert4rec_tf.models import BprMf, Pop
from bert4rec_tf.serving import batch, client

NAMES = ["a,b", 'say "x"', "Ünï", "plain", "c", "d", "e", "f"]
COUNTS = np.arange(len(NAMES), 0, -1)
VOCABULARY = Vocabulary(np.array(NAMES, object), COUNTS)
USERS = ["ann", "bob, jr"]
GET_POPULAR = "users have no history that the model knows, and get what is popular"


@pytest.fixture(scope="module", autouse=True)
def loaded_once():
    """every command would load the model again."""
    load, loaded = client.LoadedModel._load, {}

    def load_once(model, folder):
        if folder not in loaded:
            load(model, folder)
            loaded[folder] = vars(model)
        vars(model).update({**loaded[folder], **vars(model)})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client.LoadedModel, "_load", load_once)
        yield


@pytest.fixture(scope="module")
def popular(tmp_path_factory):
    model = Pop(len(NAMES))
    model.counts.assign([0, *COUNTS])
    folder = tmp_path_factory.mktemp("pop") / "model"
    export(model, VOCABULARY, folder, ExportOptions(3))
    return folder


@pytest.fixture(scope="module")
def factors(tmp_path_factory):
    keras.utils.set_random_seed(2)
    model = BprMf(len(NAMES), num_users=len(USERS), hidden_dim=4, initializer_stddev=1.0)
    folder = tmp_path_factory.mktemp("factors") / "model"
    export(model, VOCABULARY, folder, ExportOptions(3), USERS)
    return folder, np.asarray(model.score({"users": [0, 1], "items": [[1], [1]], "lengths": [1, 1]}))


@pytest.fixture
def command(tmp_path):
    """Runs the command and returns its exit code, what it printed, and its errors."""

    def run(*arguments):
        ended = console("recommend", *map(str, arguments), cwd=tmp_path)
        return ended.returncode, ended.stdout, ended.stderr

    return run


def items_of(printed):
    """The column of items in a table."""
    header, *lines = printed.splitlines()
    return [line[6 : header.index("score") - 5].rstrip() for line in lines]


def test_one_history_gets_a_table_and_a_warning_of_unknown_ids(command, popular):
    code, out, err = command(f"--model={popular}", '--history="a,b", plain,nobody', "-k", "4")
    assert code == 0 and "warning: 1 of the 3 items in the history are unknown" in err
    assert out.splitlines() == [
        "rank  item          score",
        '   1  say "x"      7.0000',
        "   2  Ünï          6.0000",
        "   3  c            4.0000",
        "   4  d            3.0000",
    ]


def test_choices_and_titles_are_in_the_table(command, popular, tmp_path):
    (tmp_path / "titles.csv").write_text('id,title\n"a,b","The first, of two"\n', encoding="utf-8")
    code, out, _ = command(
        *(f"--model={popular}", '--history="a,b"', "--keep_seen", '--candidates="a,b",c,d,e', "--exclude=d"),
        f"--titles={tmp_path / 'titles.csv'}",
    )
    assert code == 0
    assert out.splitlines() == [
        "rank  item       score  title",
        "   1  a,b       8.0000  The first, of two",
        "   2  c         4.0000",
        "   3  e         2.0000",
    ]


def test_blanks_around_ids_are_no_part_of_them_and_candidates_are_never_none(command, popular):
    _, plain, err = command(f"--model={popular}", "--history=c,d")
    assert command(f"--model={popular}", "--history= c , d ") == (0, plain, "") and err == ""
    _, composed, _ = command(f"--model={popular}", "--history=Ünï", "--exclude=c")
    assert command(f"--model={popular}", f"--history={unicodedata.normalize('NFD', 'Ünï')}", "--exclude=c") == (
        0,
        composed,
        "",
    )
    code, _, err = command(f"--model={popular}", "--history=c", "--candidates=")
    assert code == 2 and "--candidates must name at least one item" in err


def test_the_user_flag_reaches_a_model_with_users(command, factors):
    folder, scores = factors
    _, out, err = command(f"--model={folder}", "--history=", '--user="bob, jr"')
    assert err == ""
    best = np.argsort(-scores[1])[:3]
    assert items_of(out) == [NAMES[item] for item in best]
    for user in ("stranger", ""):
        _, out, err = command(f"--model={folder}", "--history=c", f"--user={user}")
        assert items_of(out) == NAMES[:3]
        assert ("this model needs --user" in err) == (user == "")
        assert ("does not know user 'stranger'" in err) == (user == "stranger")
    code, _, err = command(f"--model={folder}", "--history=c", "--user=bob, jr")
    assert code == 2 and "--user must name one user with --history. Received: --user=bob, jr" in err


ROWS = [[f"user {number:03d}", *NAMES[: number % 8], *["nobody"] * (1 + number % 3)] for number in range(100)]


def write(path, rows):
    """Writes histories as interactions."""
    with gzip.open(path, "wt") if path.suffix == ".gz" else open(path, "w", newline="") as file:
        csv.writer(file).writerows([("user", "item"), *((user, item) for user, *items in rows for item in items)])
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


def recommend_file(model, source, target, choices):
    sequences, _ = conversion.convert(Interactions(str(source)), to_train=False)
    batch.recommend_file(model, sequences, target, choices)


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(batch, "BATCH_USERS", 4)
    monkeypatch.setattr(batch, "PART_BATCHES", 3)


def test_a_file_of_interactions_becomes_a_csv_of_recommendations(command, popular, small_parts, tmp_path):
    rows = [["bob, jr", "c"], *ROWS]
    source = write(tmp_path / "actions.csv.gz", rows)
    target = tmp_path / "recommendations.csv"
    named = ["--user_column=user", "--item_column=item", "--time_column=none"]
    code, out, _ = command(f"--model={popular}", f"--interactions={source}", f"--output={target}", "-k", "5", *named)
    assert code == 0 and out.endswith(f"{target}: recommendations to 101 users\n")
    with open(target, encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    assert header == ["user", "rank", "item", "score", "basis"]
    check([(user, int(rank), item, float(score)) for user, rank, item, score, _ in lines], rows, 5)
    known = {user: "history" if {*history} & {*NAMES} else "popular" for user, *history in rows}
    assert all(basis == known[user] for user, *_, basis in lines)
    assert sorted(path.name for path in tmp_path.iterdir()) == [source.name, target.name]


def test_a_file_warns_of_users_whom_a_model_with_users_does_not_know(command, factors, tmp_path):
    folder, _ = factors
    source = write(tmp_path / "actions.csv", [["bob, jr", "c"], ["stranger", "c"]])
    named = ["--user_column=user", "--item_column=item", "--time_column=none"]
    code, _, err = command(f"--model={folder}", f"--interactions={source}", f"--output={tmp_path / 'out.csv'}", *named)
    assert code == 0 and f"1 of 2 {GET_POPULAR} (such as 'stranger')" in err
    bases = {row["user"]: row["basis"] for row in csv.DictReader((tmp_path / "out.csv").open(newline=""))}
    assert bases == {"bob, jr": "history", "stranger": "popular"}


def test_a_file_warns_of_users_after_whose_items_nothing_was_counted(command, tmp_path):
    sequences = models.make_sequences([[item] for item in range(1, 1 + models.NUM_ITEMS)], models.NUM_ITEMS)
    without_pairs = models.make("item_transitions", adapted=False)
    without_pairs.adapt(sequences)
    export(without_pairs, sequences.vocabulary, tmp_path / "model", ExportOptions(3, histories=sequences))
    write(tmp_path / "actions.csv", [[sequences.users[0], sequences.vocabulary.items[0]]])
    (tmp_path / "users.txt").write_text(sequences.users[0])
    for source in ("--interactions=actions.csv", "--users=users.txt"):
        code, _, err = command("--model=model", source, "--output=out.csv")
        assert code == 0 and f"1 of 1 {GET_POPULAR}" in err


def test_unknown_ids_are_counted_also_after_a_kill(command, popular, small_parts, tmp_path, monkeypatch):
    source, target = write(tmp_path / "actions.csv", ROWS), tmp_path / "out.csv"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setitem(batch.WRITERS, ".csv", lambda *_: (_ for _ in ()).throw(Killed))
        command(f"--model={popular}", f"--interactions={source}", f"--output={target}")
    _, _, err = command(f"--model={popular}", f"--interactions={source}", f"--output={target}")
    histories = [history for _, *history in ROWS]
    unknown, ids = sum(history.count("nobody") for history in histories), sum(map(len, histories))
    without = sum(not set(history) & set(NAMES) for history in histories)
    told = f"warning: {unknown} of {ids} ids are unknown and were skipped (such as 'nobody')\n"
    assert err.endswith(f"{told}warning: {without} of 100 {GET_POPULAR} (such as 'user 000')\n") and unknown and without


AWKWARD_USERS = [
    *AWKWARD,
    *(
        "cr\rinside",
        "\r",
        "crlf\r\nend",
        "lf\n",
        '"\r"',
        ",\r,",
        "",
        "\x1e",
        "0x10",
        "1e5",
        "NA",
        "true",
        "2020-01-01",
        "=1+1",
    ),
]


def test_any_reader_of_csv_gets_what_is_in_parquet(popular, tmp_path):
    model = client.SavedRecommender(popular)
    rows = np.arange(len(AWKWARD_USERS))
    users = np.array(AWKWARD_USERS, object)
    sequences = Sequences(np.int32(1 + rows % 8), np.arange(len(rows) + 1), users, VOCABULARY)
    titles = dict(zip(NAMES, ["carriage\rreturn", "", "two\nlines", 'a "b", c', " x ", "é", "NA"]))
    for name in ("out.csv", "out.parquet"):
        batch.recommend_file(model, sequences, tmp_path / name, client.Choices(), titles)
    wanted = parquet.read_table(tmp_path / "out.parquet")
    assert wanted.num_rows == 3 * len(rows) and set(wanted["user"].to_pylist()) == set(AWKWARD_USERS)
    texts = pa.schema([field for field in wanted.schema if field.type == pa.string()])
    with open(tmp_path / "out.csv", encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    by_csv = dict(zip(header, zip(*lines)))
    by_pandas = pandas.read_csv(tmp_path / "out.csv", dtype=dict.fromkeys(texts.names, str), keep_default_na=False)
    by_arrow = pa.csv.read_csv(
        tmp_path / "out.csv",
        parse_options=pa.csv.ParseOptions(newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(column_types=wanted.schema),
    )
    assert by_arrow.equals(wanted)
    for name in wanted.schema.names:
        expected = wanted[name].to_pylist()
        for found in (by_csv[name], by_pandas[name]):
            assert list(np.asarray(found, object if name in texts.names else np.float32)) == expected


def test_the_output_is_no_file_that_is_read(command, popular, tmp_path):
    write(tmp_path / "actions.csv", ROWS)
    (tmp_path / "link.csv").symlink_to("actions.csv")
    before = (tmp_path / "actions.csv").read_bytes()
    for flags in ("--interactions=act*.csv", "--users=actions.csv", "--users=all --attributes=actions.csv"):
        for output in ("actions.csv", str(tmp_path / "link.csv")):
            code, _, err = command(f"--model={popular}", *flags.split(), f"--output={output}")
            assert (code, err) == (
                2,
                f"error: --output must be another file than those that are read. Received: {output}\n",
            )
    assert (tmp_path / "actions.csv").read_bytes() == before
    (tmp_path / "lake" / "day").mkdir(parents=True)
    pandas.read_csv(tmp_path / "actions.csv").to_parquet(tmp_path / "lake" / "first.parquet")
    for source, output in (
        (f"file://{tmp_path}/actions.csv", "actions.csv"),
        ("act*.csv", "act2.csv"),
        ("lake", "lake/day/second.parquet"),
    ):
        code, _, err = command(f"--model={popular}", f"--interactions={source}", f"--output={output}")
        assert code == 2 and "--output must be another file" in err, err


def test_users_whose_histories_the_export_holds(command, popular, tmp_path):
    held = tmp_path / "held"
    shutil.copytree(popular, held)
    users = np.array(["ann", "bob, jr"], object)
    (held / HISTORIES).parent.mkdir(exist_ok=True)
    write_histories(Sequences(np.array([5, 4, 1], np.int32), np.array([0, 2, 3]), users, VOCABULARY), held)
    code, out, err = command(f"--model={held}", '--user=ann,"bob, jr"', "-k", "2")
    ann, bob = out.split("\n\n")
    assert (code, err) == (0, "") and [ann.splitlines()[0], bob.splitlines()[0]] == ["user ann", "user bob, jr"]
    assert items_of(ann.split("\n", 1)[1]) == NAMES[:2] and items_of(bob.split("\n", 1)[1]) == NAMES[1:3]
    assert items_of(command(f"--model={held}", "--user=ann", "-k", "5")[1]) == [*NAMES[:3], *NAMES[5:7]]
    code, out, err = command(f"--model={held}", "--user=ann,eve")
    assert items_of(out.split("user eve\n")[1]) == NAMES[:3] and code == 0
    assert err == f"warning: 1 of 2 {GET_POPULAR} (such as 'eve')\n"
    (tmp_path / "users.txt").write_bytes(b"\xef\xbb\xbfeve\r\nbob, jr \r\neve\r\n")
    target = tmp_path / "users.csv"
    code, out, warned = command(f"--model={held}", "--users=users.txt", f"--output={target}")
    assert code == 0 and warned.endswith(err)
    lines = list(csv.reader(target.open(encoding="utf-8", newline="")))
    assert [line[4] for line in lines] == ["basis", *["popular"] * 3, *["history"] * 3]
    assert [line[2] for line in lines[4:]] == NAMES[1:4] and lines[4][0] == "bob, jr"
    assert command(f"--model={held}", "--users=all", f"--output={target}")[0] == 0
    assert {line[0] for line in csv.reader(target.open(encoding="utf-8", newline=""))} == {"user", *users}
    assert (
        "holds no histories of users; to add them: bert4rec run --mode=export --workdir=WORKDIR --with"
        in command(f"--model={popular}", "--user=ann")[2]
    )


def test_users_and_a_model_may_be_in_a_store(command, popular, memory, tmp_path):
    memory.put(str(popular), "/bucket/work/saved_model", recursive=True)
    memory.pipe_file("/bucket/work/config.json", b"{}")
    code, _, err = command("--model=memory://bucket/work", "--user=ann")
    assert code == 2 and err.endswith("--workdir=WORKDIR --with_histories=1000000\n") and err.count("\n") == 1
    for version in (9, 12):
        memory.put(str(popular), f"/bucket/versions/{version}", recursive=True)
    code, _, err = command("--model=memory://bucket/versions", "--user=ann")
    place = "memory://bucket/versions"
    assert code == 2 and err == f"error: {place}: holds versions of a model; name one of them, such as {place}/12\n"
    users = np.array(["ann", "bob, jr"], object)
    (tmp_path / HISTORIES).parent.mkdir()
    write_histories(Sequences(np.array([5, 4, 1], np.int32), np.array([0, 2, 3]), users, VOCABULARY), tmp_path)
    memory.put(str(tmp_path / HISTORIES), f"/bucket/work/saved_model/{HISTORIES}")
    memory.pipe_file("/bucket/users.txt", "\ufeffbob, jr \r\n".encode())
    flags = ("--users=memory://bucket/users.txt", f"--output={tmp_path / 'lists.csv'}")
    assert command("--model=memory://bucket/work", *flags)[0] == 0
    lines = list(csv.reader((tmp_path / "lists.csv").open(encoding="utf-8", newline="")))[1:]
    assert [line[0] for line in lines] == ["bob, jr"] * 3 and [line[2] for line in lines] == NAMES[1:4]


def test_a_work_directory_is_served_as_its_export(command, popular, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    code, _, err = command(f"--model={tmp_path}", "--history=c")
    assert code == 2 and "has no exported model yet; run bert4rec run --mode=export" in err
    shutil.copytree(popular, tmp_path / "saved_model")
    assert command(f"--model={tmp_path}", "--history=c") == command(f"--model={popular}", "--history=c")


def test_a_file_has_what_the_client_gives_with_a_correction(command, popular, small_parts, tmp_path):
    source, target = write(tmp_path / "actions.csv", ROWS), tmp_path / "out.csv"
    given = "--popularity_correction=0.5"
    assert command(f"--model={popular}", f"--interactions={source}", f"--output={target}", given)[0] == 0
    users, *histories = zip(*((user, history) for user, *history in ROWS))
    answer = client.SavedRecommender(popular).recommend(histories[0], users, client.Choices(popularity_correction=0.5))
    expected = [
        [user, str(rank), item, str(score), basis]
        for user, items, scores, basis in zip(users, answer.items, answer.scores, answer.basis)
        for rank, (item, score) in enumerate(zip(items, scores), start=1)
    ]
    with open(target, encoding="utf-8", newline="") as file:
        assert list(csv.reader(file))[1:] == expected
    _, history, *_ = ROWS[1]
    scores = {name: count - 0.5 * np.log(count + 1) for name, count in zip(NAMES, COUNTS) if name != history}
    assert answer.items[1] == sorted(scores, key=lambda name: -scores[name])[:3]


def test_a_damaged_part_is_named_and_computed_anew(popular, small_parts, tmp_path, monkeypatch):
    model, source = client.SavedRecommender(popular), write(tmp_path / "in.csv", ROWS)
    target, choices = tmp_path / "out.csv", client.Choices()
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setitem(batch.WRITERS, ".csv", lambda *_: (_ for _ in ()).throw(Killed))
        recommend_file(model, source, target, choices)
    (tmp_path / ".out.csv.parts" / "part-000001").write_bytes(b"")
    with pytest.raises(UserError, match=r"part-000001: was damaged and is deleted; run the same command again"):
        recommend_file(model, source, target, choices)
    recommend_file(model, source, target, choices)
    recommend_file(model, source, tmp_path / "whole.csv", choices)
    assert target.read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_the_progress_begins_with_the_batches_of_finished_parts(popular, small_parts, tmp_path, monkeypatch):
    model, source = client.SavedRecommender(popular), write(tmp_path / "in.csv", ROWS)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setitem(batch.WRITERS, ".csv", lambda *_: (_ for _ in ()).throw(Killed))
        recommend_file(model, source, tmp_path / "out.csv", client.Choices())
    (tmp_path / ".out.csv.parts" / "part-000000").unlink()
    begun, show = [], batch.Progress
    monkeypatch.setattr(batch, "Progress", lambda *arguments: begun.append(arguments) or show(*arguments))
    recommend_file(model, source, tmp_path / "out.csv", client.Choices())
    assert begun == [("recommending", 25, 22, 4)]  # all but the 3 of the first part; the last one has 1


def test_parts_with_another_correction_are_not_taken(popular, small_parts, tmp_path, monkeypatch):
    """A job that is killed at the end leaves its parts, and the next one asks for something else."""
    model, source = client.SavedRecommender(popular), write(tmp_path / "in.csv", ROWS)
    target, wanted = tmp_path / "out.csv", tmp_path / "wanted.csv"
    recommend_file(model, source, wanted, client.Choices(popularity_correction=3.0))
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setitem(batch.WRITERS, ".csv", lambda *_: (_ for _ in ()).throw(Killed))
        recommend_file(model, source, target, client.Choices(popularity_correction=0.3))
    assert list((tmp_path / ".out.csv.parts").glob("part-*"))
    with pytest.warns(FileWarning, match="starting again"):
        recommend_file(model, source, target, client.Choices(popularity_correction=3.0))
    assert target.read_bytes() == wanted.read_bytes()


@pytest.mark.parametrize(("ending", "asks"), [("csv", 1), ("csv", 7), ("csv", 24), ("parquet", 7)])
def test_killed_recommendations_resume_and_end_with_the_same_bytes(
    popular, small_parts, tmp_path, monkeypatch, ending, asks
):
    model, source = client.SavedRecommender(popular), write(tmp_path / "actions.csv", ROWS)
    whole, target = tmp_path / f"whole.{ending}", tmp_path / f"killed.{ending}"
    choices = client.Choices(k=4)
    recommend_file(model, source, whole, choices)
    recommend, asked = client.SavedRecommender.recommend, []

    def counted(self, histories, users, choices):
        asked.append(len(histories))
        if len(asked) == asks + 1:
            raise Killed
        return recommend(self, histories, users, choices)

    monkeypatch.setattr(client.SavedRecommender, "recommend", counted)
    with pytest.raises(Killed):
        recommend_file(model, source, target, choices)
    parts = tmp_path / f".killed.{ending}.parts"
    (parts / ".part-000003.4242.partial").write_bytes(b"what a killed process had begun")
    joined = tmp_path / f".{target.name}.{2**22 + 5}-{get_host_code()}-12345678.partial"
    joined.write_bytes(b"what a process that was killed while it joined the parts had begun")
    assert not target.exists()
    recommend_file(model, source, target, choices)
    assert target.read_bytes() == whole.read_bytes()
    # The batches of finished parts are not asked for again: 25 in all, 3 for each part.
    assert len(asked) == asks + 1 + 25 - asks // 3 * 3
    assert not parts.exists() and not joined.exists()


MISTAKES = {
    "columns of no interactions": (["--history=a", "--user_column=1"], "--user_column needs --interactions=FILE"),
    "no user": (["--user="], "--user must name users. Received: nothing"),
    "nothing asked": ([], "Give either --history or --user; or --users or --interactions, with --output"),
    "k": (["--history=a", "-k", "0"], "`k` must be at least 1 and less than 2^31. Received: k=0"),
    "correction": (
        ["--history=a", "--popularity_correction=-1"],
        "`popularity_correction` must be at least 0 and finite. Received: popularity_correction=-1.0",
    ),
    "no model": (["--history=a", "--model=none"], "none/saved_model.pb: cannot be read"),
    "model of nobody": (
        ["--history=a", "--model=~nobody-at-all/x"],
        "~nobody-at-all/x: no such user",
    ),
    "two sources": (
        ["--history=a", "--interactions=in.csv"],
        "Give either --history or --user; or --users or --interactions, with --output",
    ),
    "output of a history": (
        ["--history=a", "--output=out.csv"],
        "Give either --history or --user; or --users or --interactions, with --output",
    ),
    "ending": (
        ["--interactions=in.csv", "--output=out.txt"],
        "--output must end in .csv or .parquet. Received: out.txt",
    ),
    "no folder": (["--interactions=in.csv", "--output=no/out.csv"], "no: is not a folder"),
}


@pytest.mark.parametrize("arguments, message", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_end_in_one_line(command, popular, tmp_path, arguments, message):
    (tmp_path / "in.csv").write_text("user,item\na,b\n")
    arguments = arguments if any(one.startswith("--model") for one in arguments) else [f"--model={popular}", *arguments]
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}") and err.count("\n") == 1
    assert not (tmp_path / "out.csv").exists()
