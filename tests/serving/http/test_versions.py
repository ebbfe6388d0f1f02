"""Versions of a model: which one is served, and that no request is lost when it changes."""

import os
import shutil
import threading
import warnings
from types import SimpleNamespace

import pytest
from support.http_server import Fake, Server, best, card_of, export_two
from tensorflow.core.protobuf import saved_model_pb2

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.stores import expand_path
from bert4rec_tf.foundation.warning import ServingWarning
from bert4rec_tf.serving.http.app import Served, open_versions
from bert4rec_tf.serving.http.server_settings import ServerSettings
from bert4rec_tf.serving.http.versions import Versions
from bert4rec_tf.serving.signatures import LoadedModel

FAILURES = {
    "broken": UserError("is broken"),
    "no op": RuntimeError("Op type not registered\n'New'"),
    "full": MemoryError(),
}


class Loader:
    """Loads text files in place of models; one that holds the name of a failure cannot be loaded."""

    def __init__(self):
        self.loaded = []

    def __call__(self, folder, version):
        content = (folder / "saved_model.pb").open("rb").read().decode()
        if content in FAILURES:
            raise FAILURES[content]
        self.loaded.append(version)
        return SimpleNamespace(version=version, content=content)


def write(folder, name, content="model"):
    (folder / str(name)).mkdir(exist_ok=True)
    (folder / str(name) / "saved_model.pb").write_text(content)


def test_versions_in_a_store_are_served_as_they_come(memory, told):
    memory.pipe_file("/bucket/served/1/saved_model.pb", b"first")
    loader = Loader()
    versions = Versions(expand_path("memory://bucket/served"), loader)
    memory.pipe_file("/bucket/served/2/variables/variables.index", b"")
    versions.refresh()
    memory.pipe_file("/bucket/served/2/saved_model.pb", b"broken")
    for content in (b"broken", b"second"):
        memory.pipe_file("/bucket/served/2/saved_model.pb", content)
        versions.refresh()
        assert versions.current.version == 1
        versions.refresh()
    assert (versions.current.version, versions.current.content, loader.loaded) == (2, "second", [1, 2])
    assert told() == [
        "version 2 cannot be served: is broken",
        "version 2 replaces version 1",
    ]
    memory.rm("/bucket/served", recursive=True)
    versions.refresh()
    assert versions.current.version == 2


@pytest.fixture
def told(recwarn):
    """Returns the warnings since the last call."""
    warnings.simplefilter("always")

    def read():
        lines = [str(one.message) for one in recwarn if issubclass(one.category, ServingWarning)]
        recwarn.clear()
        return lines

    return read


@pytest.fixture
def opened(tmp_path):
    """Opens the folder, and counts what is loaded."""

    def open_it():
        loader = Loader()
        return Versions(tmp_path, loader), loader

    return open_it


def states(versions):
    return {int(state["version"]): state["state"] for state in versions.status()}


def test_the_newest_number_is_served_and_other_names_are_skipped(tmp_path, opened):
    for name in ("2", "10", "9", "011", "new", "-3", ".12.partial", "1.5", "٣"):
        write(tmp_path, name)
    (tmp_path / "77").mkdir()
    versions, loader = opened()
    assert versions.current.version == 10 and loader.loaded == [10]
    versions.refresh()
    assert loader.loaded == [10] and states(versions) == {10: "AVAILABLE"}


def test_a_folder_with_a_saved_model_is_version_1(tmp_path, opened):
    (tmp_path / "saved_model.pb").write_text("model")
    versions, _ = opened()
    write(tmp_path, 2)
    versions.refresh()
    versions.refresh()
    assert versions.current.version == 1


def test_a_new_version_is_taken_when_nothing_in_it_changes_any_more(tmp_path, opened, told):
    write(tmp_path, 1)
    versions, _ = opened()
    (tmp_path / "2").mkdir()
    versions.refresh()
    write(tmp_path, 2, "half")
    versions.refresh()
    assert versions.current.version == 1
    write(tmp_path, 2, "whole model")
    versions.refresh()
    assert versions.current.version == 1
    versions.refresh()
    assert (versions.current.version, versions.current.content) == (2, "whole model")
    assert told() == ["version 2 replaces version 1"] and states(versions) == {2: "AVAILABLE"}


def test_a_version_replaced_under_its_own_number_is_loaded_again_once_whole(tmp_path, opened, told):
    write(tmp_path, 2)
    write(tmp_path, 3)
    versions, loader = opened()
    versions.refresh()
    for content, in_use in (("half", "model"), ("broken", "model"), ("another model", "another model")):
        write(tmp_path, 3, content)
        versions.refresh()
        assert (versions.current.version, versions.current.content) == (3, "model"), "it may not be whole"
        for _ in range(0 if content == "half" else 2):
            versions.refresh()
        assert (versions.current.version, versions.current.content) == (3, in_use)
    assert told() == ["version 3 cannot be served: is broken", "version 3 replaces that of before"]
    assert loader.loaded == [3, 3] and states(versions) == {3: "AVAILABLE"}


def test_a_broken_version_is_reported_once_and_loaded_again_when_it_changes(tmp_path, opened, told):
    write(tmp_path, 1)
    versions, _ = opened()
    write(tmp_path, 3, "broken")
    write(tmp_path, 2)
    for _ in range(4):
        versions.refresh()
    assert versions.current.version == 2 and len([line for line in told() if "is broken" in line]) == 1
    assert states(versions) == {3: "END", 2: "AVAILABLE"}
    write(tmp_path, 3, "mended")
    versions.refresh()
    versions.refresh()
    assert versions.current.version == 3 and states(versions) == {3: "AVAILABLE"}


def test_deleting_the_newest_version_serves_the_one_before(tmp_path, opened):
    write(tmp_path, 1)
    write(tmp_path, 2)
    versions, loader = opened()
    versions.refresh()
    shutil.rmtree(tmp_path / "2")
    versions.refresh()
    assert versions.current.version == 1 and loader.loaded == [2, 1]
    shutil.rmtree(tmp_path)
    versions.refresh()
    assert versions.current.version == 1


@pytest.mark.parametrize("folder", ["", "none"])
def test_a_folder_without_a_version_is_an_error(tmp_path, folder):
    with pytest.raises(UserError, match="holds neither a SavedModel nor numbered folders"):
        Versions(tmp_path / folder, Loader())


@pytest.mark.parametrize("failure", FAILURES)
def test_any_failure_of_a_version_is_reported_as_its_reason(tmp_path, opened, told, failure):
    for name in (3, 1):
        write(tmp_path, name, failure)
    reason = "is broken" if failure == "broken" else ".*3: cannot be loaded"
    with pytest.raises(UserError, match=rf"no version can be loaded; the newest: {reason}") as caught:
        opened()
    assert "\n" not in str(caught.value) and caught.value.__cause__ is None
    write(tmp_path, 2)
    versions, _ = opened()
    assert versions.current.version == 2
    write(tmp_path, 4, failure)
    refresh(versions)
    assert versions.current.version == 2
    assert states(versions)[4] == "END" and len([line for line in told() if "version 4" in line]) == 1
    only = tmp_path / "only"
    write(tmp_path, "only", failure)
    with pytest.raises(UserError, match="is broken" if failure == "broken" else "only: cannot be loaded"):
        Versions(only, Loader())


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return export_two(tmp_path_factory.mktemp("versions"))


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        *(("saved_model.pb", damage) for damage in ("missing", "empty", "short")),
        *[("variables/variables.index", "short"), ("variables/variables.data-00000-of-00001", "missing")],
    ],
)
def test_a_damaged_saved_model_is_a_users_mistake(exported, tmp_path, file, damage):
    folder = tmp_path / "copy"
    shutil.copytree(exported / "1", folder)
    content = (folder / file).read_bytes()
    if damage == "missing":
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(b"" if damage == "empty" else content[: len(content) // 2])
    with pytest.raises(UserError) as caught:
        LoadedModel(folder)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["saved_model.pb", "assets/vocabulary.txt", "further"])
def test_a_pipe_in_place_of_a_file_is_refused(exported, tmp_path, file):
    folder = shutil.copytree(exported / "1", tmp_path / "copy")
    (folder / file).unlink(missing_ok=True)
    os.mkfifo(folder / file)
    with pytest.raises(UserError, match=f"{file}: is not a plain file"):
        LoadedModel(folder)


@pytest.fixture
def hanging():
    """A loader of files that never answer: those with the content `hangs`."""
    end, begun = threading.Event(), []

    def load(folder, number):
        begun.append(number)
        if (folder / "saved_model.pb").open("rb").read().decode() == "hangs":
            end.wait(120)
        return Served(number, Fake(lambda arrays: {}), None)

    load.begun = begun
    yield load
    end.set()


def refresh(versions, times=3):
    for _ in range(times):
        versions.refresh()


@pytest.fixture
def quick_looks(monkeypatch):
    monkeypatch.setattr("bert4rec_tf.serving.http.versions.LOOK_SECONDS", 0.05)


def test_a_version_that_never_answers_does_not_hold_up_a_newer_one(tmp_path, hanging, quick_looks):
    write(tmp_path, 1)
    versions = Versions(tmp_path, hanging)
    write(tmp_path, 2, "hangs")
    refresh(versions, 5)
    assert states(versions) == {2: "LOADING", 1: "AVAILABLE"} and hanging.begun == [1, 2]
    write(tmp_path, 3)
    refresh(versions)
    assert states(versions) == {3: "AVAILABLE"} and hanging.begun == [1, 2, 3]


def test_a_version_that_never_answers_does_not_hold_up_older_ones_for_ever(tmp_path, hanging, quick_looks, monkeypatch):
    monkeypatch.setattr("bert4rec_tf.serving.http.versions.SLOW_SECONDS", 0.1)
    write(tmp_path, 1)
    write(tmp_path, 5, "hangs")
    versions = Versions(tmp_path, hanging)
    assert states(versions) == {5: "LOADING", 1: "AVAILABLE"}
    write(tmp_path, 2)
    refresh(versions)
    assert states(versions) == {5: "LOADING", 2: "AVAILABLE"} and hanging.begun == [5, 1, 2]
    write(tmp_path, 5, "answers")
    refresh(versions)
    assert states(versions) == {5: "AVAILABLE"}


def test_a_version_that_never_answers_does_not_hold_up_the_end(tmp_path, hanging, quick_looks, monkeypatch):
    monkeypatch.setattr("bert4rec_tf.serving.http.app.LOOK_SECONDS", 0.05)
    write(tmp_path, 1)
    versions = Versions(tmp_path, hanging)
    with Server(versions, poll_seconds=0.05) as server:
        write(tmp_path, 2, "hangs")
        while states(versions) != {2: "LOADING", 1: "AVAILABLE"}:
            threading.Event().wait(0.02)
        assert server.client().get("/readyz").json["version"] == "1"


@pytest.mark.parametrize("left", [10, -4, -1])
def test_a_vocabulary_that_is_cut_short_is_the_version_s_failure(exported, tmp_path, left):
    """TensorFlow loads it, and would name the missing items with empty ids."""
    folder = tmp_path / "copy"
    shutil.copytree(exported / "1", folder)
    path = folder / "assets" / "vocabulary.txt"
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(UserError, match=r"vocabulary.txt: was changed since the export"):
        LoadedModel(folder)


def test_a_changed_letter_of_an_id_is_the_version_s_failure(exported, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(exported / "1", folder)
    path = folder / "assets" / "vocabulary.txt"
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(UserError, match=r"vocabulary.txt: was changed since the export"):
        LoadedModel(folder)


def test_an_op_that_this_tensorflow_lacks_is_the_version_s_failure(exported, tmp_path, told):
    shutil.copytree(exported / "1", tmp_path / "models" / "1")
    newer = shutil.copytree(exported / "2", tmp_path / "models" / "2")
    content = saved_model_pb2.SavedModel.FromString((newer / "saved_model.pb").read_bytes())
    for function in content.meta_graphs[0].graph_def.library.function:
        for node in function.node_def:
            node.op = "OfTomorrow" if node.op == "TopKV2" else node.op
    (newer / "saved_model.pb").write_bytes(content.SerializeToString())
    versions = open_versions(ServerSettings(model=str(tmp_path / "models")))
    assert versions.current.version == 1 and states(versions) == {2: "END", 1: "AVAILABLE"}
    (line,) = told()
    assert "version 2 cannot be served" in line and "OfTomorrow" in line and "\n" not in line


def test_the_card_of_a_model_is_read(exported, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(exported / "1", folder)
    assert LoadedModel(folder).card == card_of(folder)
    card = folder / "assets.extra" / "model_card.json"
    for content in ("{", '{"loss": NaN}', '{"loss": 1e999}', '{"name": "\\ud800"}', "[" * 20_000 + "]" * 20_000):
        card.write_text(content)
        with pytest.raises(UserError, match="must be a JSON file"):
            LoadedModel(folder)
    card.write_text("[]")
    with pytest.raises(UserError, match="must hold a JSON object"):
        LoadedModel(folder)
    for content in ('"checksums": []', '"columns": []', '"columns": {"item": []}', '"data": 3', '"histories": []'):
        card.write_text(f"{{{content}}}")
        with pytest.raises(UserError, match=r"`\w+` must be what an export writes. Received: "):
            LoadedModel(folder)
    card.unlink()
    with pytest.raises(UserError, match="must be a JSON file"):
        LoadedModel(folder)


def copy_slowly(source, target, pause):
    """Writes a version where it will be served from, file by file, as `cp -r` would."""
    for path in sorted(source.rglob("*"), key=lambda path: (path.is_file(), str(path))):
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir(parents=True)
        else:
            content = path.read_bytes()
            place.write_bytes(content[: len(content) // 2])
            threading.Event().wait(pause)
            place.write_bytes(content)


def test_no_request_is_lost_when_a_version_changes(exported, tmp_path):
    folder = tmp_path / "served"
    shutil.copytree(exported / "1", folder / "1")
    versions = open_versions(ServerSettings(model=str(folder)))
    stop, answers, failures = threading.Event(), [], []

    def ask(server, number):
        client = server.client()
        history = ["a", f"i{number}"]
        expected = {shift: best(history, shift)[0] for shift in (1, 2)}
        while not stop.is_set():
            try:
                (found,) = client.predict(instances=[history])["predictions"]
                answers.append(next(shift for shift in (1, 2) if found["items"] == expected[shift]))
                threading.Event().wait(0.005)
            except Exception as error:
                failures.append(error)

    def wait_for(version, client):
        while client.get("/readyz").json["version"] != version:
            threading.Event().wait(0.02)

    with Server(versions, poll_seconds=0.1) as server:
        threads = [threading.Thread(target=ask, args=(server, number)) for number in range(3)]
        for thread in threads:
            thread.start()
        copy_slowly(exported / "2", folder / "2", 0.05)
        wait_for("2", server.client())
        assert server.client().ask("POST", "/v1/models/bert4rec/versions/1:predict", b"{}").status == 404
        shutil.rmtree(folder / "2")
        wait_for("1", server.client())
        threading.Event().wait(0.1)
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures and set(answers) == {1, 2}
    assert answers[0] == answers[-1] == 1
