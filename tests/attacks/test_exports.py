"""Exports and recommendations to many users that are killed at random times."""

import os
import signal
import subprocess
import sys
import time

import pytest
from support import commands, whole_runs
from support.folders import list_names

from bert4rec_tf.export.layout import CARD_OF_SAVED_MODEL
from bert4rec_tf.foundation.files import read_json

USERS = 60_000


def killed(noise, cwd, begun, *arguments):
    """Starts a command and kills it a moment after a new file like `begun` is there. Returns whether it was at work."""
    older = set(cwd.glob(begun))
    process = subprocess.Popen(
        [sys.executable, "-c", "from bert4rec_tf.commands.main import main; main()", *arguments],
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name != "BERT4REC_DATA"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and older.issuperset(cwd.glob(begun)):
        time.sleep(0.002)
    time.sleep(noise.uniform(0, noise.choice([0.02, 1.5])))
    process.send_signal(signal.SIGKILL)
    _, error = process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGKILL), error
    return process.returncode != 0


@pytest.mark.slow
def test_an_export_that_is_killed_leaves_the_old_one_or_the_new_one(attack, uninterrupted, tmp_path):
    """Real processes export over an older export, elsewhere than in the work directory."""
    export = ("--mode=export", f"--workdir={uninterrupted('static')}", "--export_dir=model")
    commands.finished(*export, "--k=2", cwd=tmp_path)
    k, whole = 2, list_names(tmp_path / "model")
    before = whole_runs.contents_of(tmp_path / "model")
    for noise in attack.trials():
        wanted = 5 - k
        begun = f".model.*.partial/{noise.choice(['', 'saved_model.pb', CARD_OF_SAVED_MODEL])}"
        if killed(noise, tmp_path, begun, "run", *export, f"--k={wanted}"):
            found = read_json(tmp_path / "model" / CARD_OF_SAVED_MODEL)["k"]
            attack.outcomes["killed, old" if found == k else "killed, new"] += 1
        else:
            found = wanted
            attack.outcomes["had ended"] += 1
        assert list_names(tmp_path / "model") == whole
        if found == k:
            assert whole_runs.contents_of(tmp_path / "model") == before
        else:
            k, before = found, whole_runs.contents_of(tmp_path / "model")
        ended = commands.console("recommend", "--model=model", f"--history={10**15}", cwd=tmp_path)
        assert ended.returncode == 0 and len(ended.stdout.splitlines()) == 1 + k, ended.stderr
    commands.finished(*export, "--k=7", cwd=tmp_path)
    assert not whole_runs.partials(tmp_path)


@pytest.mark.slow
def test_recommendations_that_are_killed_end_with_the_same_bytes(attack, uninterrupted, tmp_path):
    users = tmp_path / "users.csv"
    users.write_text("user,item\n" + "".join(f"u{user},{10**15 + user % 100}\n" for user in range(USERS)))
    recommend = ("recommend", f"--model={uninterrupted('static')}", "--interactions=users.csv")
    whole = {}
    for ending in ("csv", "parquet"):
        assert commands.console(*recommend, f"--output=whole.{ending}", cwd=tmp_path).returncode == 0
        whole[ending] = (tmp_path / f"whole.{ending}").read_bytes()
    for noise in attack.trials():
        ending = noise.choice(sorted(whole))
        target = tmp_path / f"out.{ending}"
        for _ in range(noise.randint(1, 3)):
            begun = noise.choice([f".out.{ending}.parts/part-*", f".out.{ending}.*.partial"])
            was_killed = killed(noise, tmp_path, begun, *recommend, f"--output={target.name}")
            attack.outcomes["killed" if was_killed else "had ended"] += 1
            assert not target.exists() or target.read_bytes() == whole[ending]
        assert commands.console(*recommend, f"--output={target.name}", cwd=tmp_path).returncode == 0
        assert target.read_bytes() == whole[ending]
        target.unlink()
        assert list_names(tmp_path) == ["users.csv", "whole.csv", "whole.parquet"]
