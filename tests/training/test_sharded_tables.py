"""Item tables whose rows lie on two workers, against the same run in one process with the whole table."""

import json
import signal

import numpy as np
import pytest
from support.whole_runs import assert_same_runs
from support.workers import SMALL, ended, start, start_all, wait_for

SAMPLED = (
    *("--loss=sampled_softmax", "--shared_negatives=64", "--optimizer=rowwise_adagrad", "--protocol=select"),
    *("--dropout=0", "--attention_dropout=0"),
)
SHARDED = (*SAMPLED, "--shard_tables")
TABLES = ("model/000", "model/001")


def arrays(path):
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def losses_and_metrics(path):
    rows = json.loads(arrays(path)["header"].tobytes())["state"]["curve"]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The work directory of the run in one process."""
    folder = tmp_path_factory.mktemp("whole")
    codes, outputs = ended([start(0, None, folder, [*SMALL, *SAMPLED, f"--workdir={folder / 'work'}"])])
    assert codes == [0], outputs
    return folder / "work" / "select"


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """The folder of the run on two workers."""
    folder = tmp_path_factory.mktemp("sharded")
    codes, outputs = ended(start_all(folder, flags=[*SHARDED, "--mode=all"]))
    assert codes == [0, 0], outputs
    return folder


@pytest.mark.slow
def test_two_workers_with_half_the_rows_each_learn_what_one_process_does(whole, sharded):
    last = "step-000000024.npz"
    for one, other in zip(
        losses_and_metrics(whole / last), losses_and_metrics(sharded / "work" / "select" / last), strict=True
    ):
        assert other == pytest.approx(one, rel=0, abs=1e-6)
    wanted, found = arrays(whole / "best.npz"), arrays(sharded / "work" / "select" / "whole.npz")
    names = [name for name in found if name.startswith("model/")]
    assert names == [name for name in wanted if name.startswith("model/")]
    for name in names:
        np.testing.assert_allclose(found[name], wanted[name], rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_each_worker_holds_every_second_row(sharded):
    folder = sharded / "work" / "select"
    table = arrays(folder / "whole.npz")["model/000"]
    best = json.loads(arrays(folder / "best.npz")["header"].tobytes())["state"]["step"]
    for worker in (0, 1):
        held = arrays(folder / f"shard-{worker}-of-2-step-{best:09d}.npz")
        np.testing.assert_array_equal(held["vectors"], table[worker::2])
        assert held["vector_sums"].shape == held["biases"].shape == (len(table[worker::2]),)
    assert all(16 not in array.shape or len(array) < 100 for array in arrays(folder / "best.npz").values())


@pytest.mark.slow
def test_the_chief_measures_and_exports_the_whole_table(whole, sharded):
    metrics = json.loads((sharded / "work" / "metrics.json").read_text())
    best = max(losses_and_metrics(whole / "step-000000024.npz"), key=lambda row: row["ndcg@10"])
    assert metrics["validation"]["popular"]["ndcg@10"] == pytest.approx(best["ndcg@10"], abs=1e-6)
    assert (sharded / "work" / "saved_model").is_dir()


@pytest.mark.slow
def test_a_killed_worker_ends_the_other_and_the_run_is_resumed_to_the_bit(tmp_path, sharded):
    processes = start_all(tmp_path, flags=SHARDED)
    wait_for(tmp_path, "work/select/step-*.npz")
    processes[1].kill()
    codes, outputs = ended(processes)
    assert codes == [2, -signal.SIGKILL], outputs
    codes, outputs = ended(start_all(tmp_path, flags=SHARDED))
    assert codes == [0, 0], outputs
    assert_same_runs(sharded / "work" / "select", tmp_path / "work" / "select")
