"""Item tables whose rows lie on two workers, against the same run in one process with the whole table."""

import json
import shutil
import signal

import numpy as np
import pytest
from support.whole_runs import assert_same_runs
from support.workers import SMALL, ended, start, start_all, wait_for

from bert4rec_tf.config.popularity import CORRECTION
from bert4rec_tf.evaluation.metrics import PROTOCOLS
from bert4rec_tf.foundation.npz import CorruptFileError
from bert4rec_tf.foundation.stores import Url
from bert4rec_tf.models.sharded_table import ShardedTable
from bert4rec_tf.training import checkpoints, shard_files
from bert4rec_tf.training.workers import Team

SAMPLED = (
    *("--loss=sampled_softmax", "--shared_negatives=64", "--optimizer=rowwise_adagrad", "--protocol=select"),
    "--dropout=0",
)
MODELS = {"bert4rec": ("--attention_dropout=0",), "sasrec": ("--model=sasrec",)}
SHARDED = (*SAMPLED, *MODELS["bert4rec"], "--shard_tables")
ONLY_ROUNDING = {"bert4rec": [], "sasrec": ["model/009"]}
"""The biases of the keys, which move no attention: Adam makes steps of the rounding of their gradients."""
CORRECTED = "--popularity_correction=validation"


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_rows_are_joined_in_blocks_that_do_not_grow_with_the_workers(monkeypatch, workers):
    monkeypatch.setattr(shard_files, "BLOCK", 4)
    table = np.arange(46, dtype=np.float32).reshape(23, 2)
    blocks = list(shard_files._in_turn([table[index::workers] for index in range(workers)], len(table)))
    np.testing.assert_array_equal(np.concatenate(blocks), table)
    assert max(map(len, blocks)) <= max(4, workers)


def test_rows_are_kept_in_a_store_and_read_back():
    folder, table = Url("memory://bucket/rows"), ShardedTable(10, 2, 0.02, seed=1, index=0, count=1)
    files = shard_files.ShardFiles(folder, table, Team())
    for step in (3, 4):
        files.save(step)
    checkpoints.Series(folder).save({}, 3, {"step": 3})
    files.keep(0)
    assert [path.name for path in folder.glob("shard-*")] == ["shard-0-of-1-step-000000003.npz"]
    variables = [*table.values, *table.sums]
    before = [variable.numpy() for variable in variables]
    for variable in variables:
        variable.assign(variable + 1)
    files.restore(3)
    for variable, values in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable, values)
    with pytest.raises(CorruptFileError, match=r"step-000000004.npz: cannot be read"):
        files.restore(4)


def arrays(path):
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def losses_and_metrics(path):
    rows = json.loads(arrays(path)["header"].tobytes())["state"]["curve"]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return request.param


@pytest.fixture(scope="module")
def whole(tmp_path_factory, model):
    """The work directory of the run in one process."""
    folder = tmp_path_factory.mktemp("whole")
    flags = [*SMALL, *SAMPLED, *MODELS[model], f"--workdir={folder / 'work'}"]
    codes, outputs = ended([start(0, None, folder, flags)])
    assert codes == [0], outputs
    return folder / "work" / "select"


@pytest.fixture(scope="module")
def sharded(tmp_path_factory, model):
    """The folder of the run on two workers."""
    folder = tmp_path_factory.mktemp("sharded")
    flags = [*SAMPLED, *MODELS[model], "--shard_tables", "--mode=all", CORRECTED]
    codes, outputs = ended(start_all(folder, flags=flags))
    assert codes == [0, 0], outputs
    return folder


@pytest.mark.slow
def test_two_workers_with_half_the_rows_each_learn_what_one_process_does(whole, sharded, model):
    last = "step-000000024.npz"
    for one, other in zip(
        losses_and_metrics(whole / last), losses_and_metrics(sharded / "work" / "select" / last), strict=True
    ):
        assert other == pytest.approx(one, rel=0, abs=1e-6)
    wanted, found = arrays(whole / "best.npz"), arrays(sharded / "work" / "select" / "whole.npz")
    names = [name for name in found if name.startswith("model/")]
    assert names == [name for name in wanted if name.startswith("model/")]
    for name in set(names).difference(ONLY_ROUNDING[model]):
        np.testing.assert_allclose(found[name], wanted[name], rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_each_worker_holds_every_second_row(sharded, model):
    folder = sharded / "work" / "select"
    table = arrays(folder / "whole.npz")["model/000"]
    best = json.loads(arrays(folder / "best.npz")["header"].tobytes())["state"]["step"]
    for worker in (0, 1):
        held = arrays(folder / f"shard-{worker}-of-2-step-{best:09d}.npz")
        np.testing.assert_array_equal(held["vectors"], table[worker::2])
        of_rows = ["vector_sums", *(["biases", "bias_sums"] if model == "bert4rec" else [])]
        assert {name: held[name].shape for name in held if name != "vectors"} == dict.fromkeys(
            of_rows, (len(table[worker::2]),)
        )
    assert all(16 not in array.shape or len(array) < 100 for array in arrays(folder / "best.npz").values())


@pytest.mark.slow
def test_two_workers_measure_what_one_process_does_with_the_whole_table(tmp_path, sharded):
    shutil.copytree(sharded / "work", tmp_path / "work")
    flags = ["--mode=evaluate", "--threads=1", CORRECTED, f"--workdir={tmp_path / 'work'}"]
    codes, outputs = ended([start(0, None, tmp_path, flags)])
    assert codes == [0], outputs
    wanted, found = (arrays(folder / "work" / "ranks-test.npz") for folder in (tmp_path, sharded))
    assert set(wanted) == set(found) and set(PROTOCOLS) < set(found)
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)
    wanted, found = (json.loads((folder / "work" / "metrics.json").read_text()) for folder in (tmp_path, sharded))
    for name in ("test", CORRECTION, "users", "pop", "random"):
        assert found[name] == wanted[name], name


@pytest.mark.slow
def test_the_chief_exports_the_whole_table(whole, sharded):
    metrics = json.loads((sharded / "work" / "metrics.json").read_text())
    best = max(losses_and_metrics(whole / "step-000000024.npz"), key=lambda row: row["ndcg@10"])
    assert metrics["validation"]["popular"]["ndcg@10"] == pytest.approx(best["ndcg@10"], abs=1e-6)
    assert (sharded / "work" / "saved_model").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["bert4rec"], indirect=True)
def test_a_killed_worker_ends_the_other_and_the_run_is_resumed_to_the_bit(tmp_path, sharded):
    processes = start_all(tmp_path, flags=SHARDED)
    wait_for(tmp_path, "work/select/step-*.npz")
    processes[1].kill()
    codes, outputs = ended(processes)
    assert codes == [2, -signal.SIGKILL], outputs
    codes, outputs = ended(start_all(tmp_path, flags=SHARDED))
    assert codes == [0, 0], outputs
    assert_same_runs(sharded / "work" / "select", tmp_path / "work" / "select")
