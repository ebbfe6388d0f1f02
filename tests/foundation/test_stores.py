"""Files in stores are read like files in folders, and appear whole."""

import contextlib
import itertools
from pathlib import Path

import pytest

from bert4rec_tf.foundation import stores
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.stores import LocalCopy, Url, expand_path

TREE = {"a.csv": b"rows", "step-1.npz": b"1", "step-20.npz": b"20", "sub/deep/x": b"x", "sub/y.tar.gz": b""}


def fill(store, root, tree=TREE):
    for name, content in tree.items():
        store.pipe_file(f"{root}/{name}", content)


def content_of(store, root):
    return {name.removeprefix(f"{root}/"): store.cat_file(name) for name in store.find(root)}


@pytest.fixture(params=["memory", "file"])
def place(request, tmp_path):
    """A store by fsspec's own interface, a folder in it, and the URL of that folder."""
    if request.param == "memory":
        return request.getfixturevalue("memory"), "/bucket/here", "memory://bucket/here"
    fsspec = pytest.importorskip("fsspec", reason="the extra [stores] is not installed")
    return fsspec.filesystem("file", auto_mkdir=True), f"{tmp_path}/bucket/here", f"file://{tmp_path}/bucket/here"


def test_a_url_has_the_methods_of_a_path(place, tmp_path):
    store, root, text = place
    fill(store, root)
    local = tmp_path / "tree"
    for name, content in TREE.items():
        (local / name).parent.mkdir(parents=True, exist_ok=True)
        (local / name).write_bytes(content)
    url = expand_path(text)
    assert isinstance(url, Url) and isinstance(expand_path("s3:/bucket"), Path)
    assert str(Url(text + "/")) == text and expand_path(url) == url
    for name in (*TREE, "sub", "sub/deep", "none", "sub/none"):
        one, other = url / name, local / name
        for method in ("exists", "is_dir", "is_file"):
            assert getattr(one, method)() == getattr(other, method)(), (name, method)
        assert (one.name, one.suffix) == (other.name, other.suffix)
        assert str(one.parent) == f"{text}/{other.parent.relative_to(local)}".removesuffix("/.")
        if other.is_file():
            assert one.stat().st_size == other.stat().st_size and one.open().read() == other.read_bytes()
        elif not other.exists():
            with pytest.raises(FileNotFoundError) as error:
                one.open()
            assert error.value.filename == str(one) and error.value.strerror
    for pattern in ("*", "step-*.npz", "*.gz", "[a]*", "**/*.gz"):
        names = sorted(path.name for path in local.glob(pattern) if path.is_file())
        assert sorted(path.name for path in (url / pattern).glob_files()) == names
    assert url.absolute() == url.resolve() == url


def test_a_file_is_uploaded_when_its_writer_is_done_and_only_then(place):
    store, root, text = place
    path = expand_path(text) / "x.txt"
    for content in ("one", "two"):
        with stores.write_file(path) as aside:
            aside.write_text(content)
        assert content_of(store, root) == {"x.txt": content.encode()}
    with contextlib.suppress(RuntimeError), stores.write_file(path) as aside:
        aside.write_text("three")
        raise RuntimeError
    assert content_of(store, root) == {"x.txt": b"two"}


def failing_at(store, monkeypatch, name):
    """Has the upload of a file of this name fail."""
    upload = type(store).put_file

    def put_file(self, local, remote, **options):
        if Path(local).name == name:
            raise ConnectionError("the network is away")
        return upload(self, local, remote, **options)

    monkeypatch.setattr(type(store), "put_file", put_file)


def write_folder(url, tree):
    with stores.write_folder(url, "last") as aside:
        for name, content in tree.items():
            (aside / name).parent.mkdir(exist_ok=True)
            (aside / name).write_bytes(content)


def test_a_folder_is_replaced_by_the_new_files_alone(place):
    store, root, text = place
    for tree in ({"a": b"1", "sub/b": b"1", "last": b"1"}, {"a": b"2", "sub/c": b"2", "last": b"2"}):
        write_folder(expand_path(text), tree)
        assert content_of(store, root) == tree


@pytest.mark.parametrize("fails", ["a", "last"])
def test_a_folder_whose_upload_fails_is_empty_and_can_be_written_again(memory, monkeypatch, fails):
    url, whole = expand_path("memory://bucket/here"), {"a": b"2", "last": b"2"}
    write_folder(url, {"a": b"1", "b": b"1", "last": b"1"})
    with monkeypatch.context() as patch:
        failing_at(memory, patch, fails)
        with pytest.raises(UserError, match=r"memory://bucket/here: cannot be written .*the network is away"):
            write_folder(url, whole)
    assert content_of(memory, "/bucket/here") == {}
    write_folder(url, whole)
    assert content_of(memory, "/bucket/here") == whole


def test_a_local_copy_has_the_files_of_one_moment_and_is_deleted(memory, monkeypatch):
    fill(memory, "/bucket/here")
    copy = LocalCopy(Url("memory://bucket/here"))
    found = {str(path.relative_to(copy.folder)): path.read_bytes() for path in copy.folder.rglob("*") if path.is_file()}
    assert found == TREE
    folder = copy.folder
    del copy
    assert not folder.exists()

    numbers, fetch = itertools.count(), type(memory).get_file

    def changing(self, remote, local, **options):
        if next(numbers) < len(TREE):  # while the first copy is made
            memory.pipe_file("/bucket/here/a.csv", b"changed")
        return fetch(self, remote, local, **options)

    monkeypatch.setattr(type(memory), "get_file", changing)
    assert (LocalCopy(Url("memory://bucket/here")).folder / "a.csv").read_bytes() == b"changed"
    monkeypatch.setattr(
        type(memory), "get_file", lambda self, *arguments, **options: memory.touch("/bucket/here/a.csv")
    )
    with pytest.raises(UserError, match="memory://bucket/here: changes while it is read"):
        LocalCopy(Url("memory://bucket/here"))
    assert LocalCopy(Path("here")).folder == Path("here")


def test_a_local_copy_stays_in_its_folder(memory):
    memory.store["/bucket/here/../../../escaped"] = memory.open("/x", "wb")
    with pytest.raises(UserError, match="would be written outside of it"):
        LocalCopy(Url("memory://bucket/here"))


def test_a_folder_of_this_machine_cannot_be_in_a_store(memory):
    for path in ("memory://bucket/work", expand_path("memory://bucket/work")):
        with pytest.raises(UserError, match=r"^`workdir` must be a folder on this machine.* Received: workdir=memory"):
            stores.expand_local_path(path, "workdir")
    assert stores.expand_local_path("work", "workdir") == Path("work")


def test_a_folder_is_checked_before_long_work(memory, monkeypatch):
    stores.check_replaceable(expand_path("memory://bucket/here"))
    assert content_of(memory, "/bucket/here") == {}
    monkeypatch.setattr(type(memory), "pipe_file", lambda self, *arguments, **options: 1 / 0)
    with pytest.raises(UserError, match=r"^memory://bucket/here: cannot be written \(ZeroDivisionError"):
        stores.check_replaceable(expand_path("memory://bucket/here"))


def test_a_new_folder_of_a_store_of_files_can_be_checked(tmp_path):
    pytest.importorskip("fsspec", reason="the extra [stores] is not installed")
    stores.check_replaceable(expand_path(f"file://{tmp_path}/new/folder"))
    assert not any((tmp_path / "new" / "folder").iterdir())


def test_an_address_with_a_server_behind_the_bucket_is_kept_by_a_pattern(memory, monkeypatch):
    """As Azure's, `abfs://bucket@server/...`, whose place is `bucket/...`."""
    strip = type(memory)._strip_protocol
    monkeypatch.setattr(
        type(memory), "_strip_protocol", classmethod(lambda _, path: strip(path.replace("@server", "")))
    )
    fill(memory, "/bucket/here")
    found = Url("memory://bucket@server/here/*.npz").glob_files()
    assert [str(url) for url in found] == [f"memory://bucket@server/here/{name}" for name in TREE if "npz" in name]
    assert found[0].open().read() == b"1"
