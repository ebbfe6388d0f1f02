"""ONNX and LiteRT files, run by their own runtimes and compared with the model in Python."""

import json
import logging

import numpy as np
import pytest
import tensorflow as tf
from support.models import HISTORIES, NUM_ITEMS, NUM_USERS, make
from support.profiles import slow_but

from bert4rec_tf.data.sequences import Vocabulary
from bert4rec_tf.export import portable
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.models import MODELS

VOCABULARY = Vocabulary(np.array([f"item {number}" for number in range(NUM_ITEMS)], object), np.ones(NUM_ITEMS, int))
USERS = [f"user {number}" for number in range(NUM_USERS)]


def expected(model, width=0):
    """The vectors and scores of all histories, padded to at least `width` items, as the model gives them."""
    more = max(width - HISTORIES["items"].shape[1], 0)
    vectors = np.asarray(model.user_vectors({**HISTORIES, "items": np.pad(HISTORIES["items"], [[0, 0], [0, more]])}))
    scores = model.score_vectors(vectors)
    return vectors, np.asarray(tf.nn.log_softmax(scores) if model.scores_are_logits else scores)


some_models = pytest.mark.parametrize("name", slow_but(["bert4rec", "bpr_mf"], MODELS))


@some_models
def test_onnx_files_give_the_model_s_numbers(tmp_path, name):
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra [export] is not installed")
    pytest.importorskip("tf2onnx", reason="the extra [export] is not installed")
    model = make(name)
    portable.export(model, VOCABULARY, tmp_path / "onnx", "onnx", USERS)
    encoder, scorer = (
        onnxruntime.InferenceSession(tmp_path / "onnx" / f"{part}.onnx") for part in ("encoder", "scorer")
    )
    names = [one.name for one in encoder.get_inputs()]
    assert names == ["items", "lengths", "users"][: 3 if model.needs_users else 2]
    (vectors,) = encoder.run(["vectors"], {name: HISTORIES[name] for name in names})
    (scores,) = scorer.run(["scores"], {"vectors": vectors})
    for found, wanted in zip((vectors, scores), expected(model)):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    (one,) = encoder.run(["vectors"], {name: HISTORIES[name][1:2] for name in names})
    np.testing.assert_allclose(one, vectors[1:2], atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "settings"), [("sasrec", {"num_heads": 1}), ("bert4rec", {"positions_from_last": True})]
)
def test_onnx_files_of_other_architectures_give_the_model_s_numbers(tmp_path, name, settings):
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra [export] is not installed")
    pytest.importorskip("tf2onnx", reason="the extra [export] is not installed")
    model = MODELS[name](len(VOCABULARY.items), hidden_dim=8, max_length=6, **settings)
    portable.export(model, VOCABULARY, tmp_path / "onnx", "onnx")
    encoder = onnxruntime.InferenceSession(tmp_path / "onnx" / "encoder.onnx")
    (vectors,) = encoder.run(["vectors"], {name: HISTORIES[name] for name in ("items", "lengths")})
    np.testing.assert_allclose(vectors, expected(model)[0], rtol=1e-4, atol=1e-4)


@some_models
def test_litert_files_give_the_model_s_numbers(tmp_path, name, monkeypatch):
    interpreter = pytest.importorskip("ai_edge_litert.interpreter", reason="the extra [export] is not installed")
    model = make(name)
    monkeypatch.setattr(logging.root, "handlers", [])
    portable.export(model, VOCABULARY, tmp_path / "litert", "litert", USERS)
    assert logging.root.handlers == []
    encoder, scorer = (
        interpreter.Interpreter(str(tmp_path / "litert" / f"{part}.tflite")).get_signature_runner("serving_default")
        for part in ("encoder", "scorer")
    )
    width = encoder.get_input_details()["items"]["shape"][1]
    for row, (items, length) in enumerate(zip(HISTORIES["items"], HISTORIES["lengths"])):
        last = items[max(length - width, 0) : length]
        inputs = {"items": np.zeros([1, width], np.int32), "lengths": np.array([len(last)], np.int32)}
        inputs["items"][0, : len(last)] = last
        if model.needs_users:
            inputs["users"] = HISTORIES["users"][[row]]
        vector = encoder(**inputs)["vectors"]
        scores = scorer(vectors=vector)["scores"]
        for found, wanted in zip((vector, scores), expected(model, width)):
            np.testing.assert_allclose(found[0], wanted[row], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_exports_hold_ids_and_a_model_card(tmp_path):
    pytest.importorskip("ai_edge_litert", reason="the extra [export] is not installed")
    for _ in range(2):
        portable.export(make("bpr_mf"), VOCABULARY, tmp_path / "made", "litert", USERS, {"digest": "1"})
    names = ["encoder.tflite", "model_card.json", "scorer.tflite", "users.txt", "vocabulary.txt"]
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == names
    assert (tmp_path / "made" / "vocabulary.txt").read_text().splitlines() == VOCABULARY.items.tolist()
    assert (tmp_path / "made" / "users.txt").read_text().splitlines() == USERS
    card = json.loads((tmp_path / "made" / "model_card.json").read_text())
    assert card["model"] == "BprMf" and card["items"] == NUM_ITEMS and card["digest"] == "1"


def test_a_file_whose_numbers_differ_is_not_written(tmp_path, monkeypatch):
    pytest.importorskip("ai_edge_litert", reason="the extra [export] is not installed")
    run = portable._make_litert_runner
    shifted = {"vectors": 2e-3}

    def runner(content):
        right = run(content)
        return lambda inputs: {name: found + shifted.get(name, 0) for name, found in right(inputs).items()}

    monkeypatch.setattr(portable, "_make_litert_runner", runner)
    with pytest.raises(UserError, match=r"encoder\.tflite: `vectors` differ from TensorFlow's by 0\.002"):
        portable.export(make("pop"), VOCABULARY, tmp_path / "made", "litert")
    assert not list(tmp_path.iterdir())


def test_mistakes_are_named_before_anything_is_made(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"Unknown format: 'onyx'\. Did you mean 'onnx'"):
        portable.check_export(tmp_path, "onyx")
    (tmp_path / "mine.txt").write_text("mine")
    pytest.importorskip("ai_edge_litert", reason="the extra [export] is not installed")
    with pytest.raises(UserError, match="holds other files than an older export"):
        portable.check_export(tmp_path, "litert")
    monkeypatch.setitem(portable.NEEDED, "litert", ("no_such_package",))
    with pytest.raises(UserError, match=r"litert needs no_such_package: pip install 'bert4rec-tf\[export\]'"):
        portable.check_export(tmp_path / "new", "litert")
