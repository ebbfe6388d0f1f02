"""Files in stores are used like files in folders, and appear whole."""

import contextlib
import itertools
import subprocess
import sys
import threading
from pathlib import Path

import filelock
import pytest

from bert4rec_tf.foundation import files, npz, store_lock
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.files import FolderLock, atomic_write, expand_path, replace_directory
from bert4rec_tf.foundation.processes import get_host_code
from bert4rec_tf.foundation.store_lock import StoreLock
from bert4rec_tf.foundation.stores import LocalCopy, Url

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
        assert str(one.with_name("new.npz")) == f"{text}/{Path(name).with_name('new.npz')}"
        if other.is_file():
            assert one.read_bytes() == other.read_bytes() and one.stat().st_size == other.stat().st_size
            assert one.open().read() == other.read_bytes() and one.read_text() == other.read_text()
        elif not other.exists():
            for read in (Url.read_bytes, Url.open, lambda path: list(path.iterdir())):
                with pytest.raises(FileNotFoundError) as error:
                    read(one)
                assert error.value.filename == str(one) and error.value.strerror
    for folder in ("", "sub", "none"):
        for pattern in ("*", "step-*.npz", "*.gz", "[a]*"):
            found = sorted(path.name for path in (local / folder).glob(pattern))
            assert sorted(path.name for path in (url / folder).glob(pattern)) == found
    assert [path.name for path in url.iterdir()] == ["a.csv", "step-1.npz", "step-20.npz", "sub"]
    assert url.parents[0] == url.parent == Url(text.rpartition("/")[0]) and url.absolute() == url.resolve() == url
    (url / "a.csv").unlink()
    assert not (url / "a.csv").exists()
    (url / "a.csv").unlink(missing_ok=True)
    url.remove()
    assert not list(url.glob("*"))


def test_a_file_is_uploaded_when_its_writer_is_done_and_only_then(place):
    store, root, text = place
    path = expand_path(text) / "x.txt"
    for content in ("one", "two"):
        files.write_text(path, content)
        assert content_of(store, root) == {"x.txt": content.encode()}
    with contextlib.suppress(RuntimeError), atomic_write(path) as aside:
        aside.write_text("three")
        raise RuntimeError
    assert content_of(store, root) == {"x.txt": b"two"}
    npz.write(path.with_name("x.npz"), {"one": npz.encode_lines(["a", "b"])})
    assert npz.decode_lines(npz.read(path.with_name("x.npz"))["one"]) == ["a", "b"]


def failing_at(store, monkeypatch, name):
    """Has the upload of a file of this name fail."""
    upload = type(store).put_file

    def put_file(self, local, remote, **options):
        if Path(local).name == name:
            raise ConnectionError("the network is away")
        return upload(self, local, remote, **options)

    monkeypatch.setattr(type(store), "put_file", put_file)


def write_folder(url, tree):
    with replace_directory(url, "last") as aside:
        for name, content in tree.items():
            (aside / name).parent.mkdir(exist_ok=True)
            (aside / name).write_bytes(content)


def test_a_folder_is_replaced_by_the_new_files_alone(place):
    store, root, text = place
    for tree in ({"a": b"1", "sub/b": b"1", "last": b"1"}, {"a": b"2", "sub/c": b"2", "last": b"2"}):
        write_folder(expand_path(text), tree)
        assert content_of(store, root) == tree


@pytest.mark.parametrize("fails", ["a", "last"])
def test_a_folder_that_is_not_whole_lacks_its_last_file_and_can_be_written_again(memory, monkeypatch, fails):
    url, whole = expand_path("memory://bucket/here"), {"a": b"2", "last": b"2"}
    write_folder(url, {"a": b"1", "b": b"1", "last": b"1"})
    with monkeypatch.context() as patch:
        failing_at(memory, patch, fails)
        with pytest.raises(UserError, match=r"memory://bucket/here: cannot be written .*the network is away"):
            write_folder(url, whole)
    assert "last" not in content_of(memory, "/bucket/here")
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


@pytest.fixture
def quick(monkeypatch):
    for name, seconds in (("BEAT_SECONDS", 0.05), ("POLL_SECONDS", 0.01), ("SILENT_SECONDS", 2.0)):
        monkeypatch.setattr(store_lock, name, seconds)


def test_a_folder_has_one_owner_at_a_time(memory, quick):
    one, other = (FolderLock(expand_path("memory://bucket/here"), busy="is busy") for _ in range(2))
    with one.lock() as first, one.lock() as second:
        assert (first, second) == (True, False)
        assert list(content_of(memory, "/bucket/here")) == [".owner"]
        with pytest.raises(UserError, match="memory://bucket/here: is busy"), other.lock():
            pass
    assert content_of(memory, "/bucket/here") == {}
    with other.lock():
        pass


def test_a_waiting_process_gets_the_lock_when_it_is_released(memory, quick):
    url, done = expand_path("memory://bucket/here"), []

    def wait():
        with FolderLock(url).lock():
            done.append("second")

    with FolderLock(url).lock():
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join(0.2)
        done.append("first")
    thread.join()
    assert done == ["first", "second"]


def test_an_owner_of_another_machine_is_replaced_when_it_is_silent(memory, quick, monkeypatch):
    memory.pipe_file("/bucket/here/.owner", b"1-abcdef-12345678 3\n")
    monkeypatch.setattr(store_lock, "SILENT_SECONDS", 0.1)
    with FolderLock(expand_path("memory://bucket/here"), busy="is busy").lock():
        assert not memory.cat_file("/bucket/here/.owner").startswith(b"1-abcdef")


def test_a_killed_process_of_this_machine_is_replaced_at_once(memory, monkeypatch):
    code = "from bert4rec_tf.foundation.processes import make_writer_name; print(make_writer_name())"
    name = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.strip()
    memory.pipe_file("/bucket/here/.owner", name + b" 3\n")
    monkeypatch.setattr(store_lock.time, "sleep", lambda seconds: pytest.fail("waited"))
    with FolderLock(expand_path("memory://bucket/here"), busy="is busy").lock():
        pass


def test_a_replaced_owner_does_not_delete_the_new_owner_s_lock(memory, quick, capsys):
    lock = StoreLock(Url("memory://bucket/.owner"))
    lock.acquire()
    memory.pipe_file("/bucket/.owner", b"1-abcdef-12345678 3\n")
    lock._thread.join()
    assert "another process has taken over" in capsys.readouterr().err
    lock.release()
    assert memory.cat_file("/bucket/.owner") == b"1-abcdef-12345678 3\n"
    with pytest.raises(filelock.Timeout):
        memory.pipe_file("/bucket/.owner", f"1-{get_host_code()}-12345678 0\n".encode())
        beating = threading.Timer(
            0.05, lambda: memory.pipe_file("/bucket/.owner", f"1-{get_host_code()}-1 1\n".encode())
        )
        beating.start()
        lock.acquire(0)
