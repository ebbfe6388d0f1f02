"""The commands with a local S3 server, in processes of their own, which the environment leads to it."""

import gzip
import os
import subprocess
import sys
import urllib.request

import pytest
from support import whole_runs

pytestmark = pytest.mark.slow

ROWS = "user,item,timestamp\n" + "".join(
    f"u{user},i{(13 * user * user + step) % 40},{step}\n" for user in range(60) for step in range(6 + user % 7)
)
RUN = (
    *("run", "--steps=20", "--evaluate_every=10", "--warmup_steps=2", "--batch_size=16", "--hidden_dim=16"),
    *("--num_heads=2", "--num_layers=1", "--max_length=8", "--num_negatives=10", "--threads=1"),
    *("--protocol=select", "--mask_copies=4", "--checkpoint_seconds=0"),
)


@pytest.fixture(scope="module")
def environment():
    """A server with an empty bucket, and the variables that lead to it."""
    for name in ("moto", "flask", "flask_cors", "s3fs"):
        pytest.importorskip(name, reason="the extra [test-stores] is not installed")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    access = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**access, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
            patch.setenv(name, value)
        yield os.environ
    server.stop()


@pytest.fixture
def s3(environment):
    """s3fs's own interface to the bucket."""
    import s3fs

    store = s3fs.S3FileSystem(use_listings_cache=False)
    store.mkdir("bucket")
    yield store
    reset = urllib.request.Request(f"{environment['AWS_ENDPOINT_URL']}/moto-api/reset", method="POST")
    urllib.request.urlopen(reset).close()


def start(*arguments, cwd):
    code = "from bert4rec_tf.commands.main import main; main()"
    command = [sys.executable, "-c", code, *arguments]
    environment = {**os.environ, "BERT4REC_DATA": str(cwd / "data")}
    return subprocess.Popen(
        command, cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(*arguments, **options):
    process = start(*arguments, **options)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


def read_error(*arguments, **options):
    process = start(*arguments, **options)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 2, out + err
    *before, line = err.splitlines()
    assert all(other.startswith("warning: ") for other in before), err
    return line


def test_data_in_s3_give_the_model_of_local_files_and_it_is_exported_to_s3(s3, tmp_path):
    (tmp_path / "rows").mkdir()
    lines = ROWS.splitlines(keepends=True)
    for number in range(2):
        content = gzip.compress("".join([lines[0], *lines[1 + number :: 2]]).encode())
        (tmp_path / "rows" / f"{number}.csv.gz").write_bytes(content)
        s3.pipe_file(f"bucket/rows/{number}.csv.gz", content)
    finish(*RUN, "--interactions=rows/*.gz", "--workdir=local", cwd=tmp_path)
    places = ("--workdir=remote", "--export_dir=s3://bucket/served/1")
    for _ in range(2):  # the second replaces the first
        finish(*RUN, "--interactions=s3://bucket/rows/*.gz", *places, cwd=tmp_path)
    for name in ("local", "remote"):
        (tmp_path / name / ".lock").unlink()
        (tmp_path / name / "prepared" / ".lock").unlink()
    names = whole_runs.differences(tmp_path / "local", tmp_path / "remote")
    assert {name for name in names if not name.startswith("saved_model/")} == {"config.json"}  # the path of the data

    listed = ("recommend", "--interactions=rows/0.csv.gz")
    finish(*listed, "--model=local", "--output=here.csv", cwd=tmp_path)
    finish(*listed, "--model=s3://bucket/served/1", "--output=s3://bucket/out/there.csv", cwd=tmp_path)
    assert s3.cat_file("bucket/out/there.csv") == (tmp_path / "here.csv").read_bytes()
    assert s3.find("bucket/out") == ["bucket/out/there.csv"]


def test_a_bucket_that_is_not_there_ends_in_one_line(s3, tmp_path):
    line = read_error("run", "--dataset=synthetic", "--workdir=work", "--export_dir=s3://none/model", cwd=tmp_path)
    assert line.startswith("error: s3://none/model: cannot be written (no such file, folder or bucket)")
