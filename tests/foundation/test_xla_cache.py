"""Compiled programs that are kept for the next process, and never in the way."""

import os
import resource
import signal
import subprocess
import sys
import textwrap

import pytest
from support.paths import ROOT

from bert4rec_tf.data.sources.datasets import resolve_data_folder
from bert4rec_tf.foundation import xla_cache
from bert4rec_tf.foundation.errors import UserError

COMPUTE = """
    import os, signal
    from bert4rec_tf.foundation.startup import import_tensorflow
    import_tensorflow()
    import tensorflow as tf
    multiply = tf.function(lambda rows: tf.reduce_sum(tf.sin(rows) @ tf.transpose(rows)), jit_compile=True)
    print(float(multiply(tf.ones([3, 4]))))
"""


def compute(home, code=COMPUTE, **environment):
    """Compiles and runs a small program in a process with this cache. Returns what it printed."""
    kept = {name: value for name, value in os.environ.items() if name not in ("TF_XLA_FLAGS", "XLA_FLAGS")}
    environment = {**kept, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(home), **environment}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def find_programs(home):
    return {path: path.stat().st_mtime_ns for path in home.rglob("*.pb")}


@pytest.mark.slow
def test_a_second_process_compiles_nothing_also_after_a_killed_one(tmp_path):
    killed = compute(tmp_path, COMPUTE + "    os.kill(os.getpid(), signal.SIGKILL)\n")
    programs = find_programs(tmp_path)
    assert killed.returncode == -signal.SIGKILL and len(programs) == 1
    second = compute(tmp_path)
    assert second.returncode == 0 and float(second.stdout) > 0
    assert find_programs(tmp_path) == programs, "nothing was written again"


@pytest.mark.parametrize("name", ["Jane Doe", "x - y --z", "a'b\"c\\d"])
def test_programs_are_kept_in_a_home_of_any_name(tmp_path, name):
    """TensorFlow splits its flags at blanks, and exits without a word at one that it does not know."""
    done = compute(tmp_path / name)
    assert done.returncode == 0 and float(done.stdout) > 0, done.stderr
    assert len(find_programs(tmp_path / name)) == 1 and [path.name for path in tmp_path.iterdir()] == [name]


def set_flags_anew(monkeypatch):
    monkeypatch.setenv("TF_XLA_FLAGS", "")
    monkeypatch.setenv("XLA_FLAGS", "")
    xla_cache.set_flags()
    return os.environ["TF_XLA_FLAGS"]


def test_a_program_that_another_process_removes_does_not_matter(monkeypatch, tmp_path):
    def remove(folder):
        raise FileNotFoundError("1.pbhost-1.tmp")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(xla_cache, "_remove_old_programs", remove)
    assert xla_cache.CACHE_FLAG in set_flags_anew(monkeypatch)


def test_without_room_for_a_program_none_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert xla_cache.CACHE_FLAG in set_flags_anew(monkeypatch)
    old_limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    old_handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (xla_cache.PROBE_BYTES // 2, old_limits[1]))
    try:
        assert set_flags_anew(monkeypatch) == ""
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old_limits)
        signal.signal(signal.SIGXFSZ, old_handler)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_a_user_without_a_home_has_no_cache(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("BERT4REC_DATA", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert set_flags_anew(monkeypatch) == ""
    with pytest.raises(UserError, match="has no home folder: set HOME or XDG_CACHE_HOME"):
        resolve_data_folder()


@pytest.mark.slow
def test_without_a_place_for_programs_each_process_compiles(tmp_path):
    (tmp_path / "bert4rec_tf").write_text("a file where a folder should be")
    done = compute(tmp_path)
    assert done.returncode == 0 and float(done.stdout) > 0


def test_flags_of_the_user_stay(monkeypatch, tmp_path):
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_persistent_cache_directory=/mine")
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_force_compilation_parallelism=3")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    xla_cache.set_flags()
    assert os.environ["TF_XLA_FLAGS"] == "--tf_xla_persistent_cache_directory=/mine"
    assert os.environ["XLA_FLAGS"] == "--xla_gpu_force_compilation_parallelism=3"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("cache", ["~/cache", "", None])
def test_programs_lie_in_the_user_s_cache_beside_the_data(monkeypatch, tmp_path, cache):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("BERT4REC_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if cache is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
    expected = tmp_path / ("cache" if cache else ".cache") / "bert4rec_tf"
    assert (xla_cache.find_folder().parent, resolve_data_folder()) == (expected / "xla", expected)


def test_only_the_newest_programs_that_are_whole_stay(monkeypatch, tmp_path):
    monkeypatch.setattr(xla_cache, "MAX_PROGRAMS", 2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TF_XLA_FLAGS", "")
    monkeypatch.setenv("XLA_FLAGS", "")
    folder = xla_cache.find_folder()
    folder.mkdir(parents=True)
    for number in range(4):
        path = folder / f"{number}.pb"
        path.write_bytes(b"program")
        os.utime(path, (number, number))
    (folder / "0.pbhost-1.tmp").write_bytes(b"begun")
    os.utime(folder / "0.pbhost-1.tmp", (0, 0))
    (folder / "4.pb").touch()
    os.utime(folder / "4.pb", (1, 1))
    xla_cache.set_flags()
    assert sorted(path.name for path in folder.iterdir()) == ["2.pb", "3.pb"]
    (folder / "3.pb").write_bytes(b"")
    monkeypatch.setenv("TF_XLA_FLAGS", "")
    xla_cache.set_flags()
    assert [path.name for path in folder.iterdir()] == ["2.pb"]
    assert os.environ["TF_XLA_FLAGS"] == f'{xla_cache.CACHE_FLAG}="{folder}"'
