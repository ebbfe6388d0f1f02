"""What a shop asks of a server every day: rules, reasons, numbers, a description of the API, and an access log."""

import concurrent.futures
import io
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from urllib.parse import quote

import numpy as np
import pandas as pd
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.exports import NAMES, VOCABULARY, transformer
from support.http_server import Server, wait_until

import bert4rec_tf as b4r
from bert4rec_tf.export.layout import ATTRIBUTES
from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.export.saved_model import export
from bert4rec_tf.foundation.warning import ServingWarning
from bert4rec_tf.serving import rules
from bert4rec_tf.serving.http import batching, predict
from bert4rec_tf.serving.http.app import open_rules, open_versions
from bert4rec_tf.serving.http.observing import AccessLog
from bert4rec_tf.serving.http.server_settings import ServerSettings

HISTORY = ["two words", "日本語", "0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("daily") / "model"
    frame = pd.DataFrame({"price": range(30)}, index=NAMES)
    export(transformer(), VOCABULARY, folder, ExportOptions(3, attributes=frame))
    return folder


@pytest.fixture(scope="module")
def versions(folder):
    return open_versions(ServerSettings(model=str(folder)))


@pytest.fixture(scope="module")
def model(folder):
    return b4r.open(folder)


def test_a_condition_holds_for_recommended_and_similar_items(versions, model):
    with Server(versions) as server:
        client = server.client()
        found = client.predict(inputs={"histories": [HISTORY, []], "where": "price > 20"})["outputs"]
        expected = model.recommend(history=HISTORY, k=3, where="price > 20")["item"].tolist()
        assert found["items"][0] == expected and set(found["items"][1]) <= set(NAMES[21:])
        near = client.predict(signature_name="similar", inputs={"items": ["0"], "k": 4, "where": "price < 9"})[
            "outputs"
        ]
        assert near["items"][0] == model.similar("0", k=4, where="price < 9")["item"].tolist()
        for where, words in (
            ("weight > 3", "Unknown attribute: 'weight'. Known: price"),
            ("price > 99", "leaves none"),
        ):
            answer = client.post({"inputs": {"histories": [HISTORY], "where": where}})
            assert answer.status == 400 and words in answer.json["error"]


def test_several_items_are_compared_without_rules_for_any_k(versions, model):
    with Server(versions, max_answer=90) as server:
        client = server.client()
        found = client.predict(signature_name="similar", inputs={"items": NAMES[:2]})["outputs"]["items"]
        assert found == [model.similar(name, k=3)["item"].tolist() for name in NAMES[:2]]
        found = client.predict(signature_name="similar", inputs={"items": NAMES[:2], "k": 1_000})["outputs"]["items"]
        assert {len(row) for row in found} == {30}


def test_a_block_list_holds_for_every_list_and_is_read_again(versions, model, tmp_path, capsys):
    path = tmp_path / "blocked.txt"
    best = model.recommend(history=HISTORY, k=30)["item"].tolist()
    near = model.similar("0", k=29)["item"].tolist()
    path.write_text("\n".join(best[:2]))
    with (
        pytest.warns(b4r.FileWarning, match="what it held before still counts") as caught,
        Server(versions, blocked=str(path), poll_seconds=0.02) as server,
    ):
        client = server.client()

        def ask():
            return client.predict(instances=[HISTORY])["predictions"][0]["items"]

        assert ask() == best[2:5]
        popular = [item["id"] for item in client.get("/page/items?query=").json["items"]]
        assert popular and not {*popular} & {*best[:2]}
        found = client.get(f"/page/items?query={quote(best[0])}").json["items"][0]["id"]
        assert found == best[0], "what somebody had may be found"
        similar = client.predict(signature_name="similar", inputs={"items": ["0"], "k": 5})["outputs"]["items"][0]
        assert similar == [item for item in near if item not in best[:2]][:5]
        (tmp_path / "new.txt").write_text(best[0] + "\n")
        os.replace(tmp_path / "new.txt", path)
        wait_until(lambda: ask() == best[1:4])
        path.unlink()
        wait_until(lambda: caught)
        assert ask() == best[1:4]


def test_a_block_list_is_one_input_of_all_requests(versions, tmp_path):
    (tmp_path / "blocked.txt").write_text("\n".join(NAMES[:3]))
    settings = ServerSettings(model="", blocked=str(tmp_path / "blocked.txt"))
    item_rules = open_rules(settings, versions)
    bodies = [{"histories": [["0"]]}, {"histories": [["0"], ["item 3"]]}]
    first, second = (
        predict.parse(json.dumps({"inputs": body}).encode(), versions.current.model, settings, item_rules).call
        for body in bodies
    )
    assert first.group == second.group
    joined = batching.join_calls([first, second])
    assert joined["exclude"] is first.arrays["exclude"] and joined["exclude"].shape == (1, 3)


def test_attributes_in_a_file_are_read_again(versions, tmp_path):
    path = tmp_path / "attributes.csv"
    frames = [pd.DataFrame({"id": NAMES, "price": prices}) for prices in (np.arange(30), np.arange(30)[::-1])]
    before, after = (set(frame[frame["price"] > 20]["id"]) for frame in frames)
    frames[0].to_csv(path, index=False)
    with Server(versions, attributes=str(path), poll_seconds=0.02) as server:
        client = server.client()

        def ask():
            inputs = {"histories": [[]], "k": 30, "where": "price > 20"}
            return {*client.predict(signature_name="recommend", inputs=inputs)["outputs"]["items"][0]} - {""}

        assert ask() == before != after
        frames[1].to_csv(tmp_path / "new.csv", index=False)
        os.replace(tmp_path / "new.csv", path)
        wait_until(lambda: ask() == after)


def test_damaged_attributes_are_found_when_the_model_is_loaded(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    (tmp_path / "model" / ATTRIBUTES).write_bytes(b"PAR1 damaged")
    with pytest.raises(b4r.UserError, match=r"attributes\.parquet"):
        open_versions(ServerSettings(model=str(tmp_path / "model")))


def test_rules_in_a_store_hold_and_are_read_again(versions, memory):
    def write(name, text):
        memory.pipe_file(f"/bucket/{name}", text.encode())

    write("attributes.csv", "id,price\n" + "\n".join(f"item {n},{n}" for n in range(5)))
    write("blocked.txt", "item 4\n")
    flags = {name.partition(".")[0]: f"memory://bucket/{name}" for name in ("attributes.csv", "blocked.txt")}
    with Server(versions, poll_seconds=0.02, **flags) as server:
        client = server.client()

        def ask():
            inputs = {"histories": [[]], "k": 30, "where": "price > 1"}
            return {*client.predict(signature_name="recommend", inputs=inputs)["outputs"]["items"][0]} - {""}

        assert ask() == {"item 2", "item 3"}
        write("blocked.txt", "item 3\n")
        wait_until(lambda: ask() == {"item 2", "item 4"})


def test_a_slow_rule_does_not_hold_up_others(versions, monkeypatch):
    began, ends = threading.Event(), threading.Event()

    def wait(*_):
        began.set()
        assert ends.wait(10)

    monkeypatch.setattr(rules, "select_allowed", wait)
    bodies = [b'"where"', b'"\\u0077here"']
    with Server(versions) as server, concurrent.futures.ThreadPoolExecutor() as pool:
        for name in bodies:
            began.clear()
            ends.clear()
            body = b'{"inputs": {"histories": [["0"]], %s: "price > 3"}}' % name
            answer = pool.submit(server.client().post, body)
            assert began.wait(60)
            assert server.client().get("/healthz").status == 200
            ends.set()
            assert answer.result().status == 200


def test_what_the_rules_leave_out_counts_within_the_limits(versions, model, tmp_path):
    blocked = ["two words", "0"]
    (tmp_path / "blocked.txt").write_text("\n".join(blocked))
    limits = {"max_answer": 100, "max_rows": 20, "max_history": 3}
    with Server(versions, blocked=str(tmp_path / "blocked.txt"), **limits) as server:
        client = server.client()
        found = client.predict(signature_name="similar", inputs={"items": NAMES[:14], "k": 5})["outputs"]["items"]
        for item, row in zip(NAMES, found):
            near = model.similar(item, k=29)["item"]
            assert row == [one for one in near if one not in blocked][:5]
        for items, where in ((NAMES[:15], None), (NAMES[:4], "price > 20")):
            wide = {"items": items, "k": 5, "where": where}
            answer = client.post({"signature_name": "similar", "inputs": wide})
            assert answer.status == 413 and answer.json["error"].endswith("of at most 100: ask for fewer rows")
        for width, status in ((1, 200), (2, 400)):
            inputs = {"histories": [["0"]] * 20, "exclude": [NAMES[5 : 5 + width]] * 20}
            answer = client.post({"signature_name": "recommend", "inputs": inputs})
            assert answer.status == status, answer.body
        words = "`exclude` with 2 blocked items in each row may have at most 60 values"
        assert answer.json["error"] == f"{words} with its padding. Received: 80"
    with Server(versions, blocked=str(tmp_path / "blocked.txt"), max_answer=20) as server:
        one = {"items": NAMES[:1], "k": 5, "where": "price > 20"}
        assert server.client().predict(signature_name="similar", inputs=one), "a single row is always answered"


def test_reasons_are_those_of_python(versions, model):
    with Server(versions) as server:
        found = server.client().predict(inputs={"histories": [HISTORY, []], "explain": True})["outputs"]
        expected = model.recommend(history=HISTORY, k=3, explain=True)
        for answer, row in zip(found["explanations"][0], expected.itertuples(), strict=True):
            assert answer["reasons"] == row.reasons and answer["lift"] == pytest.approx(row.lift, rel=1e-5)
        assert [answer["reasons"] for answer in found["explanations"][1]] == [[], [], []]
        assert server.client().get("/page/model").json["can_explain"]
        answer = server.client().post({"inputs": {"histories": [HISTORY] * 100, "explain": True}})
        assert answer.status == 400 and "`explain` takes at most" in answer.json["error"]
    body = {"inputs": {"histories": [HISTORY], "explain": True}}
    for max_rows, can_explain in ((52, True), (51, False)):
        with Server(versions, max_rows=max_rows) as server:
            assert server.client().get("/page/model").json["can_explain"] == can_explain
            assert (server.client().post(body).status == 200) == can_explain


def test_numbers_are_those_of_the_requests(versions):
    with Server(versions) as server:
        client = server.client()
        client.predict(instances=[HISTORY, [], ["nobody", "0"], ["nobody"]])
        client.post({"inputs": 3})
        client.get("/healthz")
        text = client.get("/metrics").body.decode()
    values = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    path = "/v1/models/{name}:predict"
    assert values["bert4rec_requests_total", *sorted(("POST", path, "200"))] == 1
    assert values["bert4rec_requests_total", *sorted(("POST", path, "400"))] == 1
    assert values["bert4rec_rows_total",] == 4 and values["bert4rec_unknown_ids_total",] == 2
    assert values["bert4rec_popular_rows_total",] == 2 and values["bert4rec_model_version",] == 1
    assert values["bert4rec_request_seconds_count", path] == 2


def test_the_description_is_valid_and_fits_the_answers(versions):
    validator = pytest.importorskip("openapi_spec_validator")
    with Server(versions) as server:
        client = server.client()
        content = client.get("/openapi.json").json
        validator.validate(content)
        for path, methods in content["paths"].items():
            if "get" in methods:
                assert client.get(path).status == 200


VALUES = {"histories": [["0", 7]], "users": ["u"], "items": ["0"], "where": "price > 3", "explain": True, "k": 2}


def test_the_description_fits_the_bodies_that_are_answered(versions):
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    bodies = [{"inputs": [["0"]]}, {"instances": [["0"]]}, {"instances": [["0"]], "inputs": [["0"]]}, {"x": 1}]
    for count in (1, 2):
        for names in itertools.combinations(VALUES, count):
            body = {"inputs": {name: VALUES[name] for name in names}}
            bodies += [body, *({"signature_name": name, **body} for name in versions.current.model.signatures)]
    with Server(versions) as server:
        client = server.client()
        operation = client.get("/openapi.json").json["paths"]["/v1/models/bert4rec:predict"]["post"]
        schema = validator(operation["requestBody"]["content"]["application/json"]["schema"])
        for body in bodies:
            assert schema.is_valid(body) == (client.post(body).status == 200), body


def test_curl_needs_no_content_type_and_every_request_is_a_line_of_json(versions, tmp_path):
    log = tmp_path / "access.jsonl"
    with Server(versions, access_log=str(log)) as server:
        address = f"http://127.0.0.1:{server.port}/v1/models/bert4rec:predict"
        body = json.dumps({"instances": [HISTORY]})
        done = subprocess.run(["curl", "-s", "-d", body, "-X", "POST", address], capture_output=True, check=True)
        assert len(json.loads(done.stdout)["predictions"][0]["items"]) == 3
        log.rename(tmp_path / "access.jsonl.1")
        server.client().get("/nowhere")
    lines = [json.loads(path.read_text()) for path in (tmp_path / "access.jsonl.1", log)]
    assert [(line["method"], line["path"], line["status"]) for line in lines] == [
        ("POST", "/v1/models/bert4rec:predict", 200),
        ("GET", "/nowhere", 404),
    ]
    assert all(np.isfinite(line["seconds"]) for line in lines)


@pytest.mark.parametrize("path", ["/dev/full", "-"])
def test_a_log_that_cannot_be_written_is_a_warning_once_and_requests_are_answered(versions, path, monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb", buffering=0) as pipe, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(pipe))
        reason = {"/dev/full": "No space left on device", "-": "Broken pipe"}[path]
        words = rf"^{path}: cannot be written \({reason}\), so requests are not logged$"
        with pytest.warns(ServingWarning, match=words) as caught, Server(versions, access_log=path) as server:
            client = server.client()
            assert [client.get("/healthz").status for _ in range(3)] == [200] * 3
            assert client.post({"instances": [HISTORY]}).status == 200
        assert len(caught) == 1


def test_nothing_is_logged_where_the_standard_output_is_closed(versions, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", None)
    with Server(versions, access_log="-") as server:
        assert server.client().get("/healthz").status == 200
    assert "/healthz" not in capsys.readouterr().err


def test_a_log_in_a_store_is_refused(memory):
    with pytest.raises(b4r.UserError, match="`access_log` must be a file on this machine"):
        AccessLog("memory://b/log")


def test_inputs_with_a_default_may_be_null(versions):
    nothing = dict.fromkeys(("k", "exclude_seen", "exclude", "candidates", "popularity_correction", "where", "explain"))
    with Server(versions) as server:
        client = server.client()
        answer = client.predict(signature_name="recommend", inputs={"histories": [HISTORY], **nothing})
        assert answer == client.predict(signature_name="recommend", inputs={"histories": [HISTORY]})
        answer = client.post({"inputs": {"histories": None}})
        assert answer.status == 400 and "`histories` is missing" in answer.json["error"]


def test_a_wrong_signature_names_the_one_that_takes_the_input(versions):
    with Server(versions) as server:
        answer = server.client().post({"inputs": {"histories": [HISTORY], "k": 3}})
    assert 'To give `k`, add "signature_name": "recommend"' in answer.json["error"]
