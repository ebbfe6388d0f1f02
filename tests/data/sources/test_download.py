"""Downloads from a server on this machine: whole and verified, or one line and nothing left in the file's place."""

import hashlib
import io
import random
import subprocess
import sys
import threading
import zipfile

import pytest
from support.file_server import served

from bert4rec_tf.data.sources import datasets, download
from bert4rec_tf.data.sources.download import Remote
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.files import FolderLock

CONTENT = random.Random(1).randbytes(300_000)
SHA = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


@pytest.fixture(autouse=True)
def online(monkeypatch):
    monkeypatch.delenv(download.OFFLINE)
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)


def remote(server, *, path="/file", checksum=SHA):
    return Remote((server.url + path,), checksum)


def refusal(*arguments):
    with pytest.raises(UserError) as refused:
        download.fetch(*arguments)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def kept(folder):
    """What lies in a folder, without locks."""
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_blob_id_of_git_is_known():
    blob = "git:ce013625030ba8dba906f756967f9e9ca394464a"
    assert download.checksum_as(io.BytesIO(b"hello\n"), "git:") == blob


@pytest.mark.parametrize("path", ["/file", "/moved"], ids=["straight", "redirected"])
def test_a_download_creates_the_folder_and_the_whole_file(tmp_path, path):
    with served(CONTENT) as server:
        download.fetch(remote(server, path=path), tmp_path / "new" / "file")
    assert (tmp_path / "new" / "file").read_bytes() == CONTENT
    assert kept(tmp_path / "new") == ["file"]


@pytest.mark.parametrize("location", ["/moved", "file:///etc/passwd", "http://[::1"])
def test_a_redirect_that_leads_nowhere_ends_in_one_line(tmp_path, location):
    with served(CONTENT, location=location) as server:
        line = refusal(remote(server, path="/moved"), tmp_path / "file")
        assert not server.asked
    assert f"Get {server.url}/moved and put it there" in line
    assert kept(tmp_path) == []


def test_an_existing_file_is_not_downloaded(tmp_path):
    (tmp_path / "file").write_bytes(b"mine")
    with served(CONTENT) as server:
        download.fetch(remote(server), tmp_path / "file")
        assert not server.asked
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_a_download_with_another_checksum_is_deleted(tmp_path):
    with served(b"another") as server:
        line = refusal(remote(server), tmp_path / "file")
        assert len(server.asked) == 1
    assert f"has the wrong checksum: expected {SHA}, received sha256:" in line
    assert kept(tmp_path) == []


def test_a_cut_download_is_fetched_again(tmp_path):
    with served(CONTENT, cut_after=[100_000, 1]) as server:
        download.fetch(remote(server), tmp_path / "file")
        assert len(server.asked) == 3
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert kept(tmp_path) == ["file"]


def test_a_download_that_is_cut_every_time_leaves_nothing(tmp_path):
    with served(CONTENT, cut_after=[1_000] * (1 + download.RETRIES)) as server:
        line = refusal(remote(server), tmp_path / "file")
    assert f"Get {server.url}/file and put it there" in line
    assert kept(tmp_path) == []


def make_archive(members):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return content.getvalue(), f"sha256:{hashlib.sha256(content.getvalue()).hexdigest()}"


def test_the_named_file_of_an_archive_is_unpacked(tmp_path):
    content, checksum = make_archive({"ml-1m/README": "read me", "ml-1m/ratings.dat": "1::2::3::4\n"})
    with served(content) as server:
        packed = Remote((server.url + "/file",), checksum, "ratings.dat")
        download.fetch(packed, tmp_path / "ml-1m" / "ratings.dat")
    assert (tmp_path / "ml-1m" / "ratings.dat").read_text() == "1::2::3::4\n"
    assert kept(tmp_path / "ml-1m") == ["ratings.dat"]


def test_an_archive_with_another_checksum_is_not_unpacked(tmp_path):
    content, _ = make_archive({"ratings.dat": "1::2::3::4\n"})
    with served(content) as server:
        line = refusal(Remote((server.url + "/file",), SHA, "ratings.dat"), tmp_path / "ratings.dat")
    assert f"has the wrong checksum: expected {SHA}" in line and "unpack ratings.dat and put it there" in line
    assert kept(tmp_path) == []


def test_a_missing_download_says_what_to_do(tmp_path):
    with served(CONTENT, status=404) as server:
        line = refusal(remote(server), tmp_path / "file")
    assert "404 Client Error" in line
    assert f"Get {server.url}/file and put it there, or set --data_dir" in line and str(tmp_path / "file") in line
    assert kept(tmp_path) == []


def test_the_second_address_serves_where_the_first_does_not(tmp_path):
    with served(b"", status=404) as first, served(CONTENT) as second:
        download.fetch(Remote((first.url + "/file", second.url + "/file"), SHA), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


PROGRAM = """
import sys
from bert4rec_tf.data.sources import download
from pathlib import Path
print("begins", flush=True)
download.fetch(download.Remote((sys.argv[1],), sys.argv[2]), Path(sys.argv[3]))
print(len(Path(sys.argv[3]).read_bytes()))
"""


def test_of_two_processes_one_fetches_and_the_other_waits(tmp_path):
    with served(CONTENT, delay=threading.Event()) as server:
        command = [sys.executable, "-c", PROGRAM, server.url + "/file", SHA, str(tmp_path / "file")]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        both = [subprocess.Popen(command, **options) for _ in range(2)]
        assert [process.stdout.readline() for process in both] == ["begins\n"] * 2
        waiting = threading.Timer(1.0, server.delay.set)
        waiting.start()
        found = [process.communicate(timeout=60) for process in both]
        assert len(server.asked) == 1
    assert [out for out, _ in found] == ["300000\n"] * 2


def test_a_download_waits_for_another_one_to_its_folder(tmp_path):
    with served(CONTENT) as server:
        command = [sys.executable, "-c", PROGRAM, server.url + "/file", SHA, str(tmp_path / "file")]
        with FolderLock(tmp_path).lock():
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            assert "another process works in it; waiting for that one" in process.stderr.readline()
            assert not server.asked
        assert process.communicate(timeout=60)[0] == "begins\n300000\n"


def test_a_data_set_is_fetched_once_and_then_used_without_a_network(tmp_path, monkeypatch, capsys):
    lines = "".join(
        f"{user} {1 + (7 * user + 3 * place) % 30}\n" for user in range(1, 41) for place in range(6)
    ).encode()
    blob = hashlib.sha1(b"blob %d\0" % len(lines) + lines).hexdigest()
    with served(lines) as server:
        packed = Remote((server.url + "/file",), f"git:{blob}")
        source = datasets.Source("ml-1m.txt", packed, terms=datasets.MOVIELENS_TERMS)
        monkeypatch.setitem(datasets.DATASETS, "ml-1m", datasets.Dataset("ML-1m", source))
        server.status = 404
        with pytest.raises(UserError):
            datasets.load("ml-1m", tmp_path)
        server.status = 200
        server.asked.clear()
        first = datasets.load("ml-1m", tmp_path)
        second = datasets.load("ml-1m", tmp_path)
        assert len(server.asked) == 1
    assert first.fingerprint == second.fingerprint and first.num_users == 40
    assert capsys.readouterr().out.count("not to be passed on") == 1


def test_offline_mode_sends_no_request(tmp_path, monkeypatch):
    monkeypatch.setenv(download.OFFLINE, "1")
    with served(CONTENT) as server:
        assert f"{download.OFFLINE} is set" in refusal(remote(server), tmp_path / "new" / "file")
        assert not server.asked
        assert not (tmp_path / "new").exists()
        for number, off in enumerate(("0", "false", "")):
            monkeypatch.setenv(download.OFFLINE, off)
            assert download.fetch(remote(server), tmp_path / f"{number}")
