"""Exports a model for other runtimes: an encoder and a scorer as ONNX or LiteRT files, with the vocabulary."""

import importlib
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert4rec_tf.data.sequences import Vocabulary
from bert4rec_tf.export.layout import CARD
from bert4rec_tf.export.saved_model import describe_model, encode_id_files, refuse_other_content, save_module
from bert4rec_tf.foundation import files, stores
from bert4rec_tf.foundation.errors import UserError, unknown_name_error
from bert4rec_tf.foundation.graphs import tf_function
from bert4rec_tf.foundation.types import Tensor
from bert4rec_tf.models.recommender import Recommender

TOLERANCE = 1e-4
"""How much an exported file's outputs may differ from TensorFlow's, absolute and relative."""

OPSET = 18
NEEDED = {"onnx": ("onnx", "onnxruntime", "tf2onnx"), "litert": ("ai_edge_litert",)}
SUFFIXES = {"onnx": ".onnx", "litert": ".tflite"}

Numbers = dict[str, np.ndarray]
Part = Callable[..., dict[str, Tensor]]


def export(
    model: Recommender,
    vocabulary: Vocabulary,
    folder: Path,
    form: str,
    users: Sequence[str] | None = None,
    card: Mapping[str, Any] | None = None,
) -> None:
    """Writes `encoder` and `scorer` files, and checks in the other runtime that their outputs match TensorFlow's.

    The encoder takes `items` (int32 [b, n], item numbers, oldest first, right-padded with 0), `lengths` (int32 [b])
    and, if the model has user embeddings, `users` (int32 [b], user numbers). It returns `vectors`, float32 [b, d]. The
    scorer takes `vectors` and returns `scores`, float32 [b, num_items]; these are log-probabilities if the model
    computes logits. ONNX files take any b and n. In LiteRT files b is 1 and n is the model's `max_history`.

    Args:
        model: a trained model, in float32.
        vocabulary, users, card: as for `saved_model.export`. Item i is column i - 1 of the scores.
        folder: written atomically; replaces an older export of the same format (`form`: "onnx" or "litert").

    Raises:
        ValueError: if there are more or fewer ids than the model has items or users.
        UserError: for another format, a missing package, a folder that holds other files, or outputs that do not match
            TensorFlow's.
    """
    check_export(folder, form)
    content, suffix = encode_id_files(model, vocabulary, users), SUFFIXES[form]
    convert, runner = (
        (_convert_to_onnx, _make_onnx_runner) if form == "onnx" else (_convert_to_litert, _make_litert_runner)
    )
    batch, width = (None, None) if form == "onnx" else (1, model.max_history or 1)
    with stores.write_folder(folder, CARD) as temp_folder:
        for name, function, inputs in _make_parts(model, batch, width):
            program = convert(function, model)
            (temp_folder / f"{name}{suffix}").write_bytes(program)
            _compare(f"{name}{suffix}", runner(program), function, inputs)
        for name, lines in content.items():
            (temp_folder / name).write_bytes(lines)
        files.write_json(temp_folder / CARD, {**describe_model(model), **(card or {})})


def check_export(folder: Path, form: str) -> None:
    """Raises UserError for an unknown format, a missing package, or a folder that holds other files."""
    if form not in NEEDED:
        raise unknown_name_error("format", form, NEEDED)
    for name in NEEDED[form]:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UserError(f"{form} needs {name}: pip install 'bert4rec-tf[export]' ({error})") from error
    refuse_other_content(folder, f"encoder{SUFFIXES[form]}")


def _make_parts(model: Recommender, batch: int | None, width: int | None) -> Iterator[tuple[str, Part, list[Numbers]]]:
    """Yields the name, the function and test inputs of the encoder, then of the scorer."""
    specs = [tf.TensorSpec([batch, width], tf.int32, "items"), tf.TensorSpec([batch], tf.int32, "lengths")]
    if model.needs_users:
        specs.append(tf.TensorSpec([batch], tf.int32, "users"))
    histories = [{spec.name: numbers[spec.name] for spec in specs} for numbers in _make_test_batches(model, batch)]

    @tf_function(input_signature=specs)
    def encoder(items, lengths, users=None):
        users = tf.zeros_like(lengths) if users is None else users
        return {"vectors": model.user_vectors({"items": items, "lengths": lengths, "users": users})}

    yield "encoder", encoder, histories
    vectors = [{"vectors": encoder(**numbers)["vectors"].numpy()} for numbers in histories]
    # The evidence part of a vector is as wide as the history.
    depth = vectors[0]["vectors"].shape[1] if model.evidence is None or batch else None

    @tf_function(input_signature=[tf.TensorSpec([batch, depth], tf.float32, "vectors")])
    def scorer(vectors):
        scores = model.score_vectors(vectors)
        return {"scores": tf.nn.log_softmax(scores) if model.scores_are_logits else scores}

    yield "scorer", scorer, vectors


def _make_test_batches(model: Recommender, batch: int | None) -> list[Numbers]:
    """Returns test batches with empty, short and full histories."""
    max_length = model.max_history or 1
    lengths = [0, 1, max_length // 2, max_length]
    rows = np.zeros([len(lengths), max_length], np.int32)
    for row, length in enumerate(lengths):
        rows[row, :length] = 1 + (row + 7 * np.arange(length)) % model.num_items
    users = np.arange(len(lengths), dtype=np.int32) % (model.num_users or 1)
    full_inputs = {"items": rows, "lengths": np.array(lengths, np.int32), "users": users}
    if batch is None:
        half = max(max_length // 2, 1)
        short_inputs = {**full_inputs, "items": rows[:, :half], "lengths": np.minimum(lengths, half)}
        return [full_inputs, {name: column.astype(np.int32) for name, column in short_inputs.items()}]
    return [{name: column[[row]] for name, column in full_inputs.items()} for row in range(len(lengths))]


def _convert_to_onnx(function: Any, _: Recommender) -> bytes:
    from tf2onnx import convert

    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    proto, _ = convert.from_function(function, input_signature=function.input_signature, opset=OPSET)
    return proto.SerializeToString()


def _convert_to_litert(function: Part, model: Recommender) -> bytes:
    module = tf.Module()
    module.weights, module.function = [weight.value for weight in model.weights], function
    # The interpreter needs a signature to name inputs and outputs, and only a SavedModel has one.
    with tempfile.TemporaryDirectory() as scratch:
        save_module(module, Path(scratch), function)
        return tf.lite.TFLiteConverter.from_saved_model(scratch).convert()


def _make_onnx_runner(content: bytes) -> Callable[[Numbers], Numbers]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    outputs = [value.name for value in session.get_outputs()]
    return lambda inputs: dict(zip(outputs, session.run(None, {name: inputs[name] for name in names})))


def _make_litert_runner(content: bytes) -> Callable[[Numbers], Numbers]:
    from ai_edge_litert.interpreter import Interpreter

    signature = Interpreter(model_content=content).get_signature_runner("serving_default")
    names = signature.get_input_details()
    return lambda inputs: signature(**{name: inputs[name] for name in names})


def _compare(name: str, run: Callable[[Numbers], Numbers], function: Part, batches: Sequence[Numbers]) -> None:
    """Raises UserError if a file's outputs differ from TensorFlow's."""
    for inputs in batches:
        outputs = run(inputs)
        for output, value in function(**inputs).items():
            if not np.allclose(outputs[output], value, rtol=TOLERANCE, atol=TOLERANCE):
                error = np.abs(outputs[output] - np.asarray(value)).max()
                raise UserError(f"{name}: `{output}` differ from TensorFlow's by {error:.2g}; nothing was written")
