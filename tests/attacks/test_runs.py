"""Runs that are killed at random times, and files of runs in which a random bit is wrong."""

import json
import shutil
import signal
import time

import pytest
from support import commands, whole_runs
from support.whole_runs import FLAGS

KIND = "one thread"


@pytest.mark.slow
def test_kills_at_random_times_change_nothing(attack, tmp_path):
    """Each trial is one run, killed up to three times, in whatever it is doing then: also while it exports."""
    # In a process of its own, for --threads is set once in a process.
    expected = whole_runs.finished(tmp_path / "expected", *FLAGS[KIND])
    for number, noise in enumerate(attack.trials()):
        cwd = tmp_path / str(number)
        for _ in range(noise.randint(1, 3)):
            process = whole_runs.start(cwd, *FLAGS[KIND], "--workdir=work")
            time.sleep(noise.uniform(2, 14))
            process.send_signal(signal.SIGKILL)
            ended = whole_runs.finish(process)
            attack.outcomes["killed" if ended.returncode else "had ended"] += 1
        whole_runs.assert_same_runs(expected, whole_runs.finished(cwd, *FLAGS[KIND]), older_checkpoints=False)
        assert not whole_runs.partials(cwd / "work")


READ_BACK = ("config.json", "*.npz", "*.tfrecord", "manifest.json", "metrics.json")


@pytest.mark.slow
def test_a_flipped_bit_is_an_error_or_changes_nothing(attack, uninterrupted, tmp_path):
    """The command that made the folder is given again: it ends as before, or in one line."""
    source = uninterrupted("static")
    measured = json.loads((source / "metrics.json").read_text())["test"]
    paths = sorted({path.relative_to(source) for pattern in READ_BACK for path in source.rglob(pattern)})
    for number, noise in enumerate(attack.trials()):
        cwd = tmp_path / str(number)
        shutil.copytree(source.parent, cwd)
        path = cwd / "work" / noise.choice(paths)
        content = bytearray(path.read_bytes())
        place = noise.randrange(len(content))
        content[place] ^= 1 << noise.randrange(8)
        path.write_bytes(content)
        ended = commands.run(*FLAGS["static"], "--workdir=work", "--data_dir=data", cwd=cwd)
        what = f"{path.relative_to(cwd)}, byte {place}"
        if ended.returncode:
            assert commands.refused(ended), what
            attack.outcomes["one line"] += 1
        else:
            found = json.loads((cwd / "work" / "metrics.json").read_text())["test"]
            assert found == measured, what
            attack.outcomes["the same metrics"] += 1
        shutil.rmtree(cwd)
