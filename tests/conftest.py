"""Fixtures of several test files."""

import functools
import os
import signal
import sys
from pathlib import Path

import pytest
from support.paths import ROOT
from support.shards import DYNAMIC, MAX_LENGTH, SEQUENCES, STATIC

from bert4rec_tf.data.examples import preparation
from bert4rec_tf.data.examples.preparation import prepare
from bert4rec_tf.data.sources import datasets

os.environ["BERT4REC_OFFLINE"] = "1"  # no test depends on a network; those of downloads have a server of their own
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a shell's background, and so in all children
    signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.append(str(ROOT))  # for benchmarks, which is not installed; last, for the package is


@pytest.fixture(scope="session")
def real_data():
    """Loads a real data set by its name, or skips the test where its file is not in the folder BERT4REC_DATA."""

    @functools.cache
    def load(name):
        folder = os.environ.get("BERT4REC_DATA")
        if not folder:
            pytest.skip("BERT4REC_DATA does not name the folder of the real data sets")
        if datasets.present(name, Path(folder)) is None:
            pytest.skip(f"{folder} has no file of {name}")
        return datasets.load(name, Path(folder))

    return load


@pytest.fixture(scope="session")
def real_file():
    """Returns the path of a file in the folder BERT4REC_DATA, or skips the test where it is not there."""

    def find(name):
        path = Path(os.environ.get("BERT4REC_DATA") or "BERT4REC_DATA is not set") / name
        if not path.exists():
            pytest.skip(f"{path}: no such file")
        return path

    return find


@pytest.fixture
def small_shards(monkeypatch):
    """Makes shards of 17 examples."""
    monkeypatch.setattr(preparation, "SHARD_SIZE", 17)


@pytest.fixture(scope="session")
def static(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "SHARD_SIZE", 17)
        return prepare(SEQUENCES, STATIC, MAX_LENGTH, 5, tmp_path_factory.mktemp("static"))


@pytest.fixture(scope="session")
def dynamic(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "SHARD_SIZE", 17)
        return prepare(SEQUENCES, DYNAMIC, MAX_LENGTH, 5, tmp_path_factory.mktemp("dynamic"))
