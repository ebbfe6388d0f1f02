"""`bert4rec serve` as a user calls it."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.commands import console, refused
from support.http_server import best

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.serving.http.server_settings import ServerSettings

JSON = {"Content-Type": "application/json"}


def test_the_command_serves_until_sigterm_without_dropping_a_request(exported):
    command = [str(Path(sys.executable).parent / "bert4rec"), "serve", f"--model={exported}", "--port=0", "--name=shop"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    try:
        assert process.stdout.readline() == f"loading {exported}\n"
        port = int(re.search(r"at http://127\.0\.0\.1:(\d+)/", process.stdout.readline()).group(1))
        assert f":{port}/v1/models/shop:predict" in process.stdout.readline()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/healthz")
        assert connection.getresponse().read()
        connection.request("POST", "/v1/models/shop:predict", json.dumps({"instances": [["a"]] * 500}), JSON)
        process.send_signal(signal.SIGTERM)
        predictions = json.loads(connection.getresponse().read())["predictions"]
        assert [row["items"] for row in predictions] == [best(["a"])[0]] * 500
        connection.close()
        assert process.stdout.read() == "stopped\n" and process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--port=0"], "--model is required"),
        (["--model=none"], "no such folder"),
        (["--model=.", "--port=70000"], "`port` must be at least 0 and at most 65535"),
        (["--model=.", "--timeout=0"], "`timeout` must be above 0"),
        (["--model=.", "--name=a/b"], "`name` must be text without"),
        (["--model=.", "--host=nowhere.invalid"], "cannot be listened on: nowhere.invalid"),
        (["--model=work"], "work: has no exported model yet; run bert4rec run --mode=export --workdir=work"),
        (["--model=.", "--host=0.0.0.0"], "holds neither a SavedModel nor numbered folders"),
    ],
)
def test_a_mistake_ends_in_one_line_and_exit_code_2(flags, words, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "config.json").write_text("{}")
    port = [] if any("port" in flag for flag in flags) else ["--port=0"]
    ended = console("serve", *flags, *port, cwd=tmp_path)
    assert words in refused(ended)
    warnings = ended.stderr.splitlines()[:-1]
    assert len(warnings) == ("0.0.0.0" in flags[-1]) and all(
        "can be reached from other machines" in one for one in warnings
    )


def test_a_port_in_use_is_an_error_before_the_model_is_loaded(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        line = refused(console("serve", f"--port={taken.getsockname()[1]}", "--model=.", cwd=tmp_path))
    assert "cannot be listened on" in line and "Address already in use" in line


def test_an_address_that_another_server_took_meanwhile_is_named(monkeypatch):
    """Both bind it, before one of them listens."""
    http_server = pytest.importorskip("bert4rec_tf.serving.http.server")
    with http_server.open_listener(ServerSettings(model="-", port=0)) as first:
        port = first.getsockname()[1]

        def open_late(settings):
            first.listen()
            return SimpleNamespace(current=SimpleNamespace(version=1))

        monkeypatch.setattr(http_server, "open_versions", open_late)
        with pytest.raises(UserError, match=rf"cannot be listened on: 127\.0\.0\.1:{port} \(Address already in use\)"):
            http_server.serve(ServerSettings(model="-", port=port))


def test_a_missing_web_library_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    for name in ("app", "server"):
        monkeypatch.delitem(sys.modules, f"bert4rec_tf.serving.http.{name}", raising=False)
        monkeypatch.delattr(f"bert4rec_tf.serving.http.{name}", raising=False)
    assert "pip install 'bert4rec-tf[serve]'" in refused(console("serve", "--model=.", cwd=tmp_path))


def test_the_help_names_every_flag(tmp_path):
    told = console("serve", "--help", cwd=tmp_path).stdout
    assert all(f"--{name}" in told for name in ServerSettings.__dataclass_fields__)
    assert "(default: 127.0.0.1)" in told and "(default: )" not in told
