"""Options, profiles, and fixtures of several test files."""

import functools
import gc
import os
import random
import signal
import sys
import time
from pathlib import Path

os.environ["TF_NUM_INTRAOP_THREADS"] = "1"  # the workers share the cores
# An attack may leave a pipe where a version is being read. That blocks one of TensorFlow's threads for ever, and a
# server has more than one.
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "32" if any("attacks" in word for word in sys.argv) else "1")
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_XLA_FLAGS"] = "--tf_xla_persistent_cache_directory="  # no test depends on what an earlier one compiled

import pytest
from hypothesis import settings
from support import profiles
from support.attacks import Attack
from support.paths import ROOT
from support.shared import SharedFolders

from bert4rec_tf.data.sources import datasets

os.environ["BERT4REC_OFFLINE"] = "1"  # no test depends on a network; those of downloads have a server of their own
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a shell's background, and so in all children
    signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.append(str(ROOT))  # for benchmarks, which is not installed; last, for the package is


def pytest_addoption(parser):
    parser.addoption(
        "--budget",
        type=float,
        metavar="SECONDS",
        help="run the files in random order, and skip every test that would begin after so many seconds",
    )
    parser.addoption("--order_seed", type=int, help="of the order with --budget (default: a new one, which is printed)")
    parser.addoption("--attack_seed", type=int, help="of the random attacks (default: a new one, which is printed)")
    parser.addoption("--attack_seconds", type=float, default=10.0, help="how long each attack goes on")


def pytest_configure(config):
    settings.register_profile("quick", max_examples=profiles.QUICK, deadline=None)
    settings.register_profile("full", deadline=None)
    settings.load_profile("full" if profiles.is_full(config.option.markexpr) else "quick")
    config.stash[BEGAN] = time.monotonic()
    if config.option.order_seed is None:
        config.option.order_seed = int.from_bytes(os.urandom(4), "big")


BEGAN = pytest.StashKey[float]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Gives a worker of pytest-xdist the order of the others."""
    node.workerinput["order_seed"] = node.config.option.order_seed


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Has `-m slow` run the property tests again, with all of their examples, and the longest test begin first.

    So no worker is left with that one while the others have nothing to do.
    """
    items.sort(key=lambda item: item.get_closest_marker("longest") is None)
    if profiles.is_full(config.option.markexpr):
        for item in items:
            if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
                item.add_marker(pytest.mark.slow)
    if config.option.budget is not None:
        files = list(dict.fromkeys(item.path for item in items))
        seed = getattr(config, "workerinput", {}).get("order_seed", config.option.order_seed)
        random.Random(seed).shuffle(files)
        items.sort(key=lambda item: files.index(item.path))


def pytest_collection_finish():
    """Keeps the garbage collector from going through TensorFlow's modules and the tests again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def quick():
    """Makes every training of a test file small and quick (`support.trainings.small_and_quick`)."""
    from support.trainings import small_and_quick  # imports TensorFlow, which most files do without

    with small_and_quick():
        yield


@pytest.fixture
def attack(request):
    """Random trials (`support.attacks`), told of in the summary."""
    seed = request.config.option.attack_seed
    name = request.node.name.removeprefix("test_").replace("_", " ")
    trials = Attack(
        name, int.from_bytes(os.urandom(4), "big") if seed is None else seed, request.config.option.attack_seconds
    )
    yield trials
    request.node.user_properties.append(("attack", str(trials)))


def pytest_terminal_summary(terminalreporter):
    reports = [one for found in terminalreporter.stats.values() for one in found]
    told = {text for one in reports for name, text in getattr(one, "user_properties", []) if name == "attack"}
    for text in sorted(told):
        terminalreporter.write_line(f"attack: {text}")
    option = terminalreporter.config.option
    if option.budget is not None:
        terminalreporter.write_line(f"order: --order_seed={option.order_seed}")


@pytest.fixture
def memory():
    """fsspec's store in memory, empty, by its own interface."""
    fsspec = pytest.importorskip("fsspec", reason="the extra [stores] is not installed")
    store = fsspec.filesystem("memory")
    yield store
    store.store.clear()
    store.pseudo_dirs[:] = [""]


@pytest.fixture(autouse=True)
def within_the_budget(request):
    budget = request.config.option.budget
    if budget is not None and time.monotonic() - request.config.stash[BEGAN] > budget:
        pytest.skip(f"the {budget:g} seconds of --budget are over")


@pytest.fixture(scope="session")
def shared_folders(tmp_path_factory):
    """Folders that the workers of this session share (`support.shared.SharedFolders`)."""
    return SharedFolders(tmp_path_factory)


@pytest.fixture(scope="session")
def real_data():
    """Loads a real data set by its name, or skips the test where its file is not in the folder BERT4REC_DATA."""

    @functools.cache
    def load(name):
        folder = os.environ.get("BERT4REC_DATA")
        if not folder:
            pytest.skip("BERT4REC_DATA does not name the folder of the real data sets")
        if datasets.find_file(name, Path(folder)) is None:
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


@pytest.fixture(scope="session")
def uninterrupted(shared_folders):
    """Returns the work directory of a run that nothing happened to, of a kind in `whole_runs.FLAGS`."""
    from support import whole_runs

    def get(kind):
        make = lambda folder: whole_runs.here(folder, *whole_runs.FLAGS[kind])  # noqa: E731
        return shared_folders.get(f"uninterrupted {kind}", make) / "work"

    return get
