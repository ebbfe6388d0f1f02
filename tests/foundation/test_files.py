"""Files and folders that appear whole or not at all."""

import errno
import itertools
import os
import stat
import subprocess
import warnings
from pathlib import Path

import pytest
from support import whole_runs as runs
from support.folders import list_names, run_or_skip

from bert4rec_tf.foundation import files, stores
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.files import FolderLock, atomic_write, replace_directory


def test_a_scratch_folder_lasts_as_long_as_its_object():
    scratch = files.ScratchFolder()
    (scratch.path / "file").write_text("content")
    path = scratch.path
    with warnings.catch_warnings(action="error"):
        del scratch
    assert not path.exists()


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("~/a/b", "{home}/a/b"),
        ("./~a", "./~a"),
        ("/x", "/x"),
        (Path("~/a"), "{home}/a"),
    ],
)
def test_a_path_is_expanded(named, found, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert stores.expand_path(named) == Path(found.format(home=tmp_path))


def test_unknown_home_is_an_error():
    with pytest.raises(UserError, match=r"^~nobody-at-all/x: no such user"):
        stores.expand_path("~nobody-at-all/x")


def test_a_name_that_is_not_in_utf_8_is_an_error():
    with pytest.raises(UserError, match=r"A path must be in UTF-8. Received: 'runs/\\udcfc\\ud800'"):
        stores.expand_path("runs/\udcfc\ud800")


def test_a_link_to_itself_is_an_error(tmp_path):
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    for path in (tmp_path / "one", str(tmp_path / "one"), tmp_path / "two" / "below"):
        with pytest.raises(UserError, match=f"^{path}: is a link that leads to itself$"):
            stores.expand_path(path)


class Stop(BaseException):
    """What no `except Exception` catches."""


ENDS = [
    (Stop(), Stop),
    (OSError(errno.ENOSPC, "No space left on device"), UserError),
]


def test_a_file_appears_with_its_content_and_nothing_else(tmp_path):
    with atomic_write(tmp_path / "file") as aside:
        aside.write_text("new")
        assert aside.parent == tmp_path and not (tmp_path / "file").exists()
    assert list_names(tmp_path) == ["file"] and (tmp_path / "file").read_text() == "new"


@pytest.mark.parametrize(("error", "raised"), ENDS)
@pytest.mark.parametrize("existing", [True, False])
def test_a_file_is_unchanged_after_any_error(tmp_path, error, raised, existing):
    if existing:
        (tmp_path / "file").write_text("old")
    before = runs.contents_of(tmp_path)
    with pytest.raises(raised), atomic_write(tmp_path / "file") as aside:
        aside.write_text("half of the n")
        raise error
    assert runs.contents_of(tmp_path) == before


def test_a_file_that_cannot_be_written_is_named_with_the_reason(tmp_path):
    with pytest.raises(UserError) as raised, atomic_write(tmp_path / "file"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert str(raised.value) == f"{tmp_path / 'file'}: cannot be written (No space left on device)"
    with pytest.raises(UserError, match=r"nowhere/file: cannot be written \(No such"):
        files.write_text(tmp_path / "nowhere" / "file", "text")
    words = rf"file: cannot be written \({tmp_path}/other: No such"
    with pytest.raises(UserError, match=words), atomic_write(tmp_path / "file"):
        (tmp_path / "other").read_text()


@pytest.mark.parametrize("failing", ["replace", "fsync"])
def test_a_file_is_unchanged_if_it_cannot_be_flushed_or_renamed(tmp_path, monkeypatch, failing):
    def fail(*arguments):
        raise OSError(errno.EIO, "Input/output error")

    (tmp_path / "file").write_text("old")
    with monkeypatch.context() as patch, pytest.raises(UserError, match=r"file: cannot be written \(Input/output"):
        patch.setattr(os, failing, fail)
        files.write_text(tmp_path / "file", "new")
    assert runs.contents_of(tmp_path) == {"file": b"old"}


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_a_disk_that_flushes_no_folders_takes_files(tmp_path, monkeypatch, code):
    fsync = os.fsync

    def fail_for_folders(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, "not for folders")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_for_folders)
    files.write_text(tmp_path / "file", "new")
    with replace_directory(tmp_path / "folder") as aside:
        (aside / "file").write_text("new")
    assert runs.contents_of(tmp_path) == {"file": b"new", "folder/file": b"new"}


def test_content_is_flushed_before_the_rename_and_the_folder_after_it(tmp_path, monkeypatch):
    done, fsync, replace = [], os.fsync, os.replace

    def synced(descriptor):
        done.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def replaced(source, target):
        done.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    files.write_text(tmp_path / "file", "new")
    assert done[0].startswith(f".file.{os.getpid()}-") and done[0].endswith(".partial")
    assert done[1:] == ["rename", tmp_path.name]


def fill(folder, content):
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "file").write_text(content)


def test_a_folder_appears_whole_and_replaces_the_one_before_it(tmp_path):
    for content in ("old", "new"):
        with replace_directory(tmp_path / "above" / "folder") as aside:
            fill(aside, content)
        assert runs.contents_of(tmp_path) == {"above/folder/below/file": content.encode()}
    assert list_names(tmp_path) == ["above", "above/folder", "above/folder/below", "above/folder/below/file"]


@pytest.mark.parametrize(("error", "raised"), ENDS)
def test_a_folder_is_unchanged_after_any_error(tmp_path, error, raised):
    fill(tmp_path / "folder", "old")
    before = list_names(tmp_path)
    with pytest.raises(raised), replace_directory(tmp_path / "folder") as aside:
        fill(aside, "half of the n")
        raise error
    assert list_names(tmp_path) == before and runs.contents_of(tmp_path) == {"folder/below/file": b"old"}


@pytest.mark.parametrize("failing", [1, 2])
def test_a_folder_is_unchanged_if_a_rename_fails(tmp_path, monkeypatch, failing):
    fill(tmp_path / "folder", "old")
    before, replace, calls = list_names(tmp_path), os.replace, []

    def fail(source, target):
        calls.append(source)
        if len(calls) == failing:
            raise OSError(errno.EIO, "Input/output error")
        replace(source, target)

    with monkeypatch.context() as patch, pytest.raises(UserError, match="folder: cannot be written"):
        patch.setattr(os, "replace", fail)
        with replace_directory(tmp_path / "folder") as aside:
            fill(aside, "new")
    assert list_names(tmp_path) == before and runs.contents_of(tmp_path) == {"folder/below/file": b"old"}


@pytest.fixture(params=["faked", "tmpfs", "bind"])
def mounted(request, tmp_path, monkeypatch):
    """A folder that cannot be renamed: a file system of its own, a mounted folder of the same one, or a faked one."""
    folder = tmp_path / "vol ume"
    folder.mkdir()
    if request.param != "faked":
        (tmp_path / "source").mkdir()
        source = {"tmpfs": ["-t", "tmpfs", "tmpfs"], "bind": ["--bind", str(tmp_path / "source")]}[request.param]
        run_or_skip("mount", *source, str(folder))
        request.addfinalizer(lambda: subprocess.run(["umount", "-l", str(folder)], check=True))
        with pytest.raises(OSError, match="busy"):
            os.replace(folder, tmp_path / "elsewhere")
        return folder
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == folder)
    replace = os.replace

    def refuse(source, target):
        if folder in (Path(source), Path(target)):
            raise OSError(errno.EBUSY, "Device or resource busy")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    return folder


def test_a_mount_point_is_filled_in_place(mounted):
    (mounted / "lost+found").mkdir()
    inode = mounted.stat().st_ino
    for content in ("old", "new"):
        files.check_replaceable(mounted)
        with replace_directory(mounted, "last") as aside:
            fill(aside, content)
            (aside / "last").write_text(content)
            (aside / content).write_text(content)
        assert runs.contents_of(mounted) == {name: content.encode() for name in ("below/file", "last", content)}
    assert mounted.stat().st_ino == inode and "lost+found" in list_names(mounted)
    with pytest.raises(Stop), replace_directory(mounted, "last") as aside:
        fill(aside, "half of the n")
        raise Stop
    assert runs.contents_of(mounted) == {name: b"new" for name in ("below/file", "last", "new")}


def test_a_kill_while_a_mount_point_is_filled_leaves_no_file_that_makes_it_whole(mounted, monkeypatch):
    with replace_directory(mounted, "last") as aside:
        (aside / "a").write_text("old")
        (aside / "last").write_text("old")
    replace, moved = os.replace, []

    def die(source, target):
        moved.append(Path(source).name)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(UserError, match="vol ume: cannot be written"), replace_directory(mounted, "last") as aside:
        (aside / "a").write_text("new")
        (aside / "last").write_text("new")
    assert moved == ["a"] and not (mounted / "last").exists()
    monkeypatch.setattr(os, "replace", replace)
    with replace_directory(mounted, "last") as aside:
        (aside / "last").write_text("newest")
    assert list_names(mounted) == ["last"]


def test_a_folder_that_cannot_be_written_is_refused_beforehand(tmp_path, mounted, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != mounted)
    with pytest.raises(UserError, match=f"{mounted}: cannot be written"):
        files.check_replaceable(mounted)
    for folder in ("new/folder", "new"):
        files.check_replaceable(tmp_path / folder)
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    files.check_replaceable(mounted)
    with pytest.raises(UserError, match="new/folder: cannot be written"):
        files.check_replaceable(tmp_path / "new" / "folder")


def test_a_file_is_not_replaced_by_a_folder(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="file: is not a folder"), replace_directory(tmp_path / "file"):
        pass
    assert runs.contents_of(tmp_path) == {"file": b"mine"}


SYSTEM_CALLS = ("mkdir", "open", "fsync", "replace", "unlink", "rmdir")
"""The calls of `replace_directory` that change the disk, and some that do not. It is killed before each."""


def killed_before(number, folder, monkeypatch):
    """Replaces `folder` in a process that is killed before its call `number`. Returns False if it made fewer calls."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    count = itertools.count()

    def counted(call):
        def made(*arguments, **options):
            return os._exit(9) if next(count) == number else call(*arguments, **options)

        return made

    try:
        for name in SYSTEM_CALLS:
            monkeypatch.setattr(os, name, counted(getattr(os, name)))
        with replace_directory(folder) as aside:
            fill(aside, "new")
    finally:
        os._exit(0)


def a_lock_of_the_folder_above(folder):
    with FolderLock(folder.parent).lock():
        pass
    (folder.parent / files.LOCK).unlink()


def a_next_call_that_fails(folder):
    with pytest.raises(Stop), replace_directory(folder):
        raise Stop


@pytest.mark.filterwarnings("ignore:.*multi-threaded")
@pytest.mark.parametrize("recovered", [a_lock_of_the_folder_above, a_next_call_that_fails])
def test_a_kill_at_any_moment_leaves_the_old_folder_or_the_new_one(tmp_path, monkeypatch, recovered):
    contents, gaps = [], 0
    for number in itertools.count():
        folder = tmp_path / str(number) / "folder"
        fill(folder, "old")
        was_killed = killed_before(number, folder, monkeypatch)
        gaps += not folder.exists()
        recovered(folder)
        (content,) = runs.contents_of(folder.parent).items()
        assert list_names(folder.parent) == ["folder", "folder/below", "folder/below/file"]
        contents.append(content)
        if not was_killed:
            break
    old, new = (("folder/below/file", content) for content in (b"old", b"new"))
    switch = contents.index(new)
    assert contents == [old] * switch + [new] * (len(contents) - switch) and 5 < switch < len(contents) - 3
    assert gaps == 1  # between the two renames
