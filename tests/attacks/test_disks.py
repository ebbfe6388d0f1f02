"""Disks that become full at a random write: one line, nothing spoilt, and the same result once there is room."""

import shutil

import pytest
from support import commands, full_disks, whole_runs

from bert4rec_tf.serving import batch

FLAGS = whole_runs.FLAGS["static"]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(batch, "BATCH_USERS", 4)
    monkeypatch.setattr(batch, "PART_BATCHES", 4)


@pytest.fixture
def disk(tmp_path):
    made = full_disks.Disk(tmp_path / "disk")
    yield made
    made.close()


def refused_for_room(attack, disk, size, command):
    """Runs a command with so much room. Returns whether it was too little."""
    with disk.room(size):
        ended = command()
    attack.outcomes["one line" if ended.returncode else "room enough"] += 1
    if ended.returncode:
        *_, line = ended.stderr.splitlines()
        assert line.startswith("error: ") and "Traceback" not in ended.stderr, (size, ended.stderr)
        assert "No space left" in line or "File too large" in line, (size, line)
        assert not whole_runs.partials(disk.folder), (size, line)
    return bool(ended.returncode)


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
def test_a_disk_that_becomes_full_during_a_run(attack, uninterrupted, disk):
    expected = uninterrupted("static")
    command = (*FLAGS, "--workdir=work", "--data_dir=data")
    for number, noise in enumerate(attack.trials()):
        cwd = disk.folder / str(number)
        shutil.copytree(expected.parent / "data", cwd / "data")
        room = noise.uniform(0, 1.2) * size_of(expected)
        for _ in range(3):
            refused_for_room(attack, disk, int(room), lambda: commands.run(*command, cwd=cwd))  # noqa: B023
            room *= noise.uniform(0, 0.6)
        whole_runs.assert_same_runs(expected, whole_runs.here(cwd, *FLAGS), older_checkpoints=False)
        shutil.rmtree(cwd)


@pytest.mark.slow
def test_a_disk_that_becomes_full_during_an_export(attack, uninterrupted, disk):
    """Over an older export, which stays whole."""
    shutil.copytree(uninterrupted("static"), disk.folder / "work")
    model = disk.folder / "work" / "saved_model"
    before = whole_runs.contents_of(disk.folder)
    command = lambda: commands.run("--mode=export", "--k=4", "--workdir=work", cwd=disk.folder)  # noqa: E731
    for noise in attack.trials():
        if refused_for_room(attack, disk, int(noise.uniform(0, 1.3) * size_of(model)), command):
            assert whole_runs.contents_of(disk.folder) == before
        else:
            before = whole_runs.contents_of(disk.folder)


@pytest.mark.slow
def test_a_disk_that_becomes_full_during_recommendations(attack, uninterrupted, disk):
    work = uninterrupted("static")
    users = disk.folder / "users.csv"
    users.write_text("user,item\n" + "".join(f"u{user},{10**15 + user % 100}\n" for user in range(300)))
    for noise in attack.trials():
        ending = noise.choice(["csv", "parquet"])
        target = disk.folder / f"out.{ending}"
        command = lambda: commands.console(  # noqa: E731
            "recommend",
            f"--model={work}",
            "--interactions=users.csv",
            f"--output={target}",  # noqa: B023
            cwd=disk.folder,
        )
        assert command().returncode == 0
        whole = target.read_bytes()
        target.write_bytes(b"an older one")
        room = int(noise.uniform(0, 5) * len(whole))
        if refused_for_room(attack, disk, room, command):
            assert target.read_bytes() == b"an older one"
            assert command().returncode == 0
        assert target.read_bytes() == whole
        assert sorted(path.name for path in disk.folder.iterdir()) == [target.name, "users.csv"]
        target.unlink()
