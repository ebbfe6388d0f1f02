"""Import of the authors' checkpoints: files that are missing or do not fit each other are named."""

import json
import pickle

import numpy as np
import pytest
from support.tf1_program import CHECKPOINT, CONFIG, TOKENS

from bert4rec_tf.data.sequences import Vocabulary
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.models import tf1_import


def load(folder, tokens=TOKENS, config=CONFIG, checkpoint=CHECKPOINT):
    (folder / "vocabulary.txt").write_text("\n".join(tokens) + "\n")
    (folder / "config.json").write_text(json.dumps(config))
    return tf1_import.load(checkpoint, folder / "config.json", folder / "vocabulary.txt")


def test_the_authors_configuration_file_is_read(tmp_path):
    model, vocabulary = load(tmp_path)
    assert model.settings.use_token_type and model.settings.intermediate_dim == CONFIG["intermediate_size"]
    assert vocabulary.decode([1, 57]) == ["1", "57"]


def test_special_tokens_may_be_at_any_row(tmp_path):
    tokens = ["[NO_USE]", *TOKENS[:10], "[MASK]", *TOKENS[10:57], "[pad]"]
    order = tf1_import.order_rows(tokens)
    moved, _ = load(tmp_path, tokens)
    table = tf1_import.read_weights(CHECKPOINT)[tf1_import.TABLE]
    assert order[0] == 0 and sorted(order) == list(range(61))
    np.testing.assert_array_equal(moved.item_embeddings.numpy()[moved.mask_token], table[12])
    np.testing.assert_array_equal(moved.item_embeddings.numpy()[[1, 11, 57]], table[[2, 13, 59]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": TOKENS[:-1]}, "has 59 tokens, but the checkpoint's table has 61 rows"),
        ({"tokens": [token for token in TOKENS if token != "[MASK]"]}, "must hold every token once"),
        ({"config": {**CONFIG, "hidden_act": "relu"}}, "`hidden_act` must be 'gelu'. Received: 'relu'"),
        ({"config": {"hidden_act": "gelu"}}, "not a configuration of the program"),
        ({"config": {**CONFIG, "max_position_embeddings": 13}}, "position_embeddings must have the shape (13, 16)"),
        ({"config": {**CONFIG, "num_hidden_layers": 3}}, "The checkpoint has no bert/encoder/layer_2"),
        ({"config": {**CONFIG, "num_hidden_layers": 1}}, "The checkpoint has bert/encoder/layer_1/attention/output"),
        ({"config": {**CONFIG, "num_attention_heads": 3}}, "`num_heads` must divide `hidden_dim`"),
        ({"checkpoint": "nowhere/model.ckpt-1"}, "nowhere/model.ckpt-1: not a TensorFlow checkpoint"),
    ],
)
def test_files_that_do_not_fit_are_named(tmp_path, changes, message):
    with pytest.raises(UserError) as raised:
        load(tmp_path, **changes)
    assert message in str(raised.value) and "UserError" not in str(raised.value)


@pytest.mark.parametrize("size", [0, 100])
def test_a_cut_checkpoint_is_answered_in_one_line(tmp_path, size):
    for path in CHECKPOINT.parent.glob(f"{CHECKPOINT.name}.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes()[: size if ".data-" in path.name else None])
    with pytest.raises(UserError, match=rf"^{tmp_path}/{CHECKPOINT.name}: not a TensorFlow checkpoint \(.*\)$"):
        tf1_import.read_weights(tmp_path / CHECKPOINT.name)


def test_the_program_s_pickle_is_answered_with_where_to_convert_it(tmp_path):
    (tmp_path / "words.vocab").write_bytes(pickle.dumps({"item_1": 1, "ü": 2.5}, protocol=2))
    with pytest.raises(UserError, match=r"not text; docs/fidelity\.md"):
        tf1_import.read_tokens(tmp_path / "words.vocab")


def test_the_model_knows_its_ids(tmp_path):
    model, vocabulary = load(tmp_path)
    assert model.ids.vocabulary is vocabulary
    grown = model.grow(Vocabulary(vocabulary.items[::-1], vocabulary.counts))
    np.testing.assert_array_equal(grown.item_embeddings.numpy()[1], model.item_embeddings.numpy()[57])
