"""Training on several machines: processes that find each other by TF_CONFIG on 127.0.0.1."""

import signal

import numpy as np
import pytest
from support.whole_runs import assert_same_runs
from support.workers import SMALL, config, ended, start, start_all, wait_for

from bert4rec_tf.config.machines import Machines
from bert4rec_tf.training.workers import Team, current_team


@pytest.mark.parametrize(
    ("role", "index", "cluster", "expected"),
    [
        ("worker", 0, {"worker": ["a:1", "b:1"]}, Machines(0, 2)),
        ("worker", 1, {"worker": ["a:1", "b:1"]}, Machines(1, 2)),
        ("chief", 0, {"chief": ["a:1"], "worker": ["b:1", "c:1"]}, Machines(0, 3)),
        ("worker", 1, {"chief": ["a:1"], "worker": ["b:1", "c:1"]}, Machines(2, 3)),
        ("worker", 0, {"worker": ["a:1"]}, None),
    ],
)
def test_the_machines_are_those_of_tf_config(monkeypatch, role, index, cluster, expected):
    monkeypatch.setenv("TF_CONFIG", config(role, index, **cluster))
    assert Machines.read() == expected


def test_without_tf_config_there_is_one_machine(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert Machines.read() is None
    alone = current_team()
    assert type(alone) is Team and alone.is_chief
    np.testing.assert_array_equal(alone.sum(np.arange(3)), [0, 1, 2])


@pytest.mark.slow
def test_a_worker_leaves_other_modes_than_training_to_the_chief(tmp_path):
    done = start(1, ["a:1", "b:1"], tmp_path, ["--dataset=synthetic", "--mode=evaluate"])
    assert done.communicate(timeout=120)[0].strip() == "Worker 0 does --mode=evaluate; this is worker 1"
    assert done.returncode == 0


# Whole runs.


def one_line_errors(outputs):
    return [[line for line in output.splitlines() if line.startswith("error: ")] for output in outputs]


@pytest.fixture(scope="module")
def on_one_machine(tmp_path_factory):
    """The work directory of the same run with two devices of one machine."""
    folder = tmp_path_factory.mktemp("alone")
    codes, outputs = ended([start(0, None, folder, [*SMALL, "--replicas=2", f"--workdir={folder / 'work'}"])])
    assert codes == [0], outputs
    return folder / "work"


@pytest.mark.slow
def test_two_workers_give_the_bits_of_two_devices(tmp_path, on_one_machine):
    codes, outputs = ended(start_all(tmp_path))
    assert codes == [0, 0], outputs
    assert_same_runs(on_one_machine, tmp_path / "work", older_checkpoints=False)
    assert len(list((tmp_path / "work" / "select" / "tensorboard").iterdir())) == 1, "only the chief writes"


@pytest.mark.slow
@pytest.mark.parametrize("signalled", [0, 1])
def test_a_signal_to_one_stops_all_with_a_checkpoint(tmp_path, on_one_machine, signalled):
    processes = start_all(tmp_path)
    wait_for(tmp_path, "work/select/step-*.npz")
    processes[signalled].send_signal(signal.SIGTERM)
    codes, outputs = ended(processes)
    assert codes == [130, 130], outputs
    codes, outputs = ended(start_all(tmp_path))
    assert codes == [0, 0], outputs
    assert_same_runs(on_one_machine, tmp_path / "work", older_checkpoints=False)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_worker_ends_the_other_and_the_run_is_resumed_to_the_bit(tmp_path, on_one_machine, killed):
    processes = start_all(tmp_path)
    wait_for(tmp_path, "work/select/step-*.npz")
    processes[killed].kill()
    codes, outputs = ended(processes)
    assert codes[killed] == -signal.SIGKILL and codes[1 - killed] == 2, outputs
    (line,) = one_line_errors(outputs)[1 - killed]
    assert "Another worker has ended" in line and "Traceback" not in outputs[1 - killed]
    codes, outputs = ended(start_all(tmp_path))
    assert codes == [0, 0], outputs
    assert_same_runs(on_one_machine, tmp_path / "work", older_checkpoints=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("each", "message"),
    [
        ([[], ["--dropout=0.3"]], "All workers must have the same run: worker 1 differs from worker 0."),
        ([["--replicas=3"]] * 2, "`replicas` must be 2, the number of devices of all workers. Received: replicas=3"),
    ],
)
def test_workers_that_do_not_fit_end_in_one_line(tmp_path, each, message):
    codes, outputs = ended(start_all(tmp_path, each=each))
    assert codes == [2, 2], outputs
    for (line,) in one_line_errors(outputs):
        assert message in line
    assert not (tmp_path / "work").exists()


@pytest.mark.slow
def test_the_chief_measures_and_exports(tmp_path):
    codes, outputs = ended(start_all(tmp_path, flags=["--mode=all", "--protocol=select"]))
    assert codes == [0, 0], outputs
    assert "This worker has done its part" in outputs[1] and "among all unseen items" in outputs[0]
    assert (tmp_path / "work" / "saved_model").is_dir() and (tmp_path / "work" / "metrics.json").exists()
