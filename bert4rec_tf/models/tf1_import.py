"""Imports the authors' TensorFlow 1 checkpoints, with every row of their softmax."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from bert4rec_tf.config.model_settings import BERT4RecSettings
from bert4rec_tf.data.sequences import Vocabulary
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.models.bert4rec import BERT4Rec
from bert4rec_tf.models.raw_ids import ModelIds

MASK_TOKEN = "[MASK]"
SPECIAL_TOKENS = ("[pad]", MASK_TOKEN, "[NO_USE]")
ITEM_PREFIX = "item_"
TABLE = "bert/embeddings/word_embeddings"
OUTPUT_BIAS = "cls/predictions/output_bias"


def load(checkpoint: str | Path, config: str | Path, vocabulary: str | Path) -> tuple[BERT4Rec, Vocabulary]:
    """Loads a model that the authors' program trained.

    Args:
        checkpoint: the prefix of the checkpoint's files, such as `.../model.ckpt-400000`.
        config: the model's configuration (`bert_config_*.json`).
        vocabulary: a text file of the program's tokens, one per line in the order of their ids from 1
            (docs/fidelity.md shows how to write one from the program's pickle).

    Returns the model, and its vocabulary: raw ids without the program's prefix `item_`. Its counts are 0, because the
    checkpoint does not hold them.

    Raises UserError for missing files, or files that do not belong together.
    """
    tokens = read_tokens(Path(vocabulary))
    weights = read_weights(checkpoint)
    settings = read_config(Path(config))
    rows = len(weights.get(TABLE, ()))
    if rows != len(tokens) + 1:
        raise UserError(
            f"{vocabulary}: has {len(tokens)} tokens, but the checkpoint's table has {rows} rows; "
            "it needs one token fewer than rows, because row 0 is padding"
        )
    order = order_rows(tokens)
    items = [tokens[row - 1].removeprefix(ITEM_PREFIX) for row in order[1:] if tokens[row - 1] not in SPECIAL_TOKENS]
    model = BERT4Rec(len(items), settings, num_extra_rows=rows - len(items) - 2)
    assign_weights(model, weights, order)
    model.ids = ModelIds(Vocabulary(np.array(items, object), np.zeros(len(items), np.int64)))
    return model, model.ids.vocabulary


def read_tokens(path: Path) -> list[str]:
    """Returns the tokens of a text vocabulary; token k (from 0) has id k + 1. Raises UserError without one `[MASK]`."""
    try:
        tokens = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not text; docs/fidelity.md shows how to turn the pickle into text") from error
    if tokens.count(MASK_TOKEN) != 1 or len(set(tokens)) != len(tokens):
        raise UserError(f"{path}: must hold every token once, {MASK_TOKEN} included")
    return tokens


SETTING_NAMES = {
    "max_position_embeddings": "max_length",
    "hidden_size": "hidden_dim",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "intermediate_dim",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "initializer_range": "initializer_stddev",
}
"""Name in the program's configuration -> our setting."""


def read_config(path: Path) -> BERT4RecSettings:
    """Returns the settings in a configuration file of the program. Raises UserError if it is not one."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        config = config.get("config", config)
        activation = config["hidden_act"]
        settings = {name: config[original_name] for original_name, name in SETTING_NAMES.items()}
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{path}: not a configuration of the program ({error!r})") from error
    if activation != "gelu":
        raise UserError(f"{path}: `hidden_act` must be 'gelu'. Received: {activation!r}")
    for original_name, name in SETTING_NAMES.items():
        if settings[name] is None:
            raise UserError(f"{path}: `{original_name}` must be a number. Received: null")
    try:
        return BERT4RecSettings(**settings, use_token_type=True)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def read_weights(checkpoint: str | Path) -> dict[str, np.ndarray]:
    """Returns a checkpoint's weights by name, without the optimizer's. Raises UserError if it is not a checkpoint."""
    try:
        reader = tf.train.load_checkpoint(str(checkpoint))
        names = [name for name in reader.get_variable_to_shape_map() if name.startswith(("bert/", "cls/"))]
        return {name: reader.get_tensor(name) for name in names if not name.endswith(("/adam_m", "/adam_v"))}
    except (ValueError, IndexError, RuntimeError, tf.errors.OpError) as error:
        raise UserError(f"{checkpoint}: not a TensorFlow checkpoint ({str(error).splitlines()[0]})") from error


def order_rows(tokens: list[str]) -> np.ndarray:
    """Returns the program's row for each of our rows: padding, the items in their order, the mask token, the rest."""
    rows = np.arange(1, len(tokens) + 1)
    kind = np.array([1 if token == MASK_TOKEN else 2 if token in SPECIAL_TOKENS else 0 for token in tokens])
    return np.concatenate([[0], rows[np.argsort(kind, kind="stable")]])


def assign_weights(model: BERT4Rec, weights: Mapping[str, np.ndarray], order: np.ndarray) -> None:
    """Copies the program's weights, name -> value, into a model of the same sizes. `order`: from `order_rows`.

    Raises UserError for a weight that is missing, has another shape, or has no place in the model.
    """
    unused_names = set(weights)
    for name, variable in name_variables(model):
        if name not in weights:
            raise UserError(f"The checkpoint has no {name}")
        value = convert_weight(name, weights[name], order)
        if tuple(value.shape) != tuple(variable.shape):
            raise UserError(f"{name} must have the shape {tuple(variable.shape)}. Received: {value.shape}")
        variable.assign(value)
        unused_names.remove(name)
    if unused_names:
        raise UserError(f"The checkpoint has {min(unused_names)}, which a model with this configuration does not have")


def convert_weight(name: str, value: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Returns a weight in our layout: item rows in our order, and only row 0 of the token types."""
    if name in (TABLE, OUTPUT_BIAS):
        return value[order]
    return value[0] if name == "bert/embeddings/token_type_embeddings" else value


def name_variables(model: BERT4Rec) -> Iterator[tuple[str, keras.Variable]]:
    """Yields the program's name of each variable, and the variable."""
    yield TABLE, model.item_embeddings
    yield "bert/embeddings/token_type_embeddings", model.token_type
    yield "bert/embeddings/position_embeddings", model.positions.embeddings
    yield from _name_norm("bert/embeddings", model.embedding_norm)
    for number, block in enumerate(model.blocks):
        prefix = f"bert/encoder/layer_{number}"
        for part in ("query", "key", "value"):
            yield from _name_dense(f"{prefix}/attention/self/{part}", getattr(block.attention, part))
        yield from _name_dense(f"{prefix}/attention/output/dense", block.attention.output_dense)
        yield from _name_norm(f"{prefix}/attention/output", block.attention_residual.norm)
        yield from _name_dense(f"{prefix}/intermediate/dense", block.feed_forward.inner)
        yield from _name_dense(f"{prefix}/output/dense", block.feed_forward.outer)
        yield from _name_norm(f"{prefix}/output", block.feed_forward_residual.norm)
    yield from _name_dense("cls/predictions/transform/dense", model.head.dense)
    yield from _name_norm("cls/predictions/transform", model.head.norm)
    yield OUTPUT_BIAS, model.head.bias


def _name_dense(name: str, layer: keras.layers.Dense) -> Iterator[tuple[str, keras.Variable]]:
    yield f"{name}/kernel", layer.kernel
    yield f"{name}/bias", layer.bias


def _name_norm(name: str, layer: keras.layers.LayerNormalization) -> Iterator[tuple[str, keras.Variable]]:
    yield f"{name}/LayerNorm/gamma", layer.gamma
    yield f"{name}/LayerNorm/beta", layer.beta
