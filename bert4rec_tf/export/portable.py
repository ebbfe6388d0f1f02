"""Models for runtimes other than TensorFlow: an encoder and a scorer as ONNX or LiteRT files, with the vocabulary."""

import contextlib
import importlib
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert4rec_tf.data.sequences import Vocabulary
from bert4rec_tf.export.layout import CARD, USERS, VOCABULARY
from bert4rec_tf.export.saved_model import facts, lines_of, refuse_other_content
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError, unknown_name
from bert4rec_tf.foundation.types import Tensor
from bert4rec_tf.models.recommender import Recommender

TOLERANCE = 1e-4
"""The most by which a file's numbers may differ from TensorFlow's, beside 1e-4 of their size."""

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
    """Writes `encoder` and `scorer` for another runtime, and compares them with TensorFlow there.

    The encoder takes `items`, int32 [b, n] item numbers oldest first with 0 on the right, `lengths`, int32 [b], and
    `users`, int32 [b] user numbers, where the model knows users. It gives `vectors`, float32 [b, d]; the scorer makes
    `scores` of them, float32 [b, num_items], log-probabilities where the model gives logits. ONNX files take any b and
    n; in LiteRT files b is 1 and n what the model reads at most.

    Args:
        model: with its weights, in float32.
        vocabulary: written beside them, line i for item i; item i stands in column i - 1 of the scores.
        folder: appears whole or not at all; an older export of this form there is replaced.
        form: "onnx" or "litert".
        users: the raw ids of the users that the model knows, line u + 1 of their file for user u.
        card: what to tell of the model beside what its export shows.

    Raises:
        UserError: for another form, a package that is missing, a folder that holds something else, or a file whose
            numbers differ from TensorFlow's.
    """
    check_export(folder, form)
    suffix = SUFFIXES[form]
    convert, runner = (_to_onnx, _onnx_runner) if form == "onnx" else (_to_litert, _litert_runner)
    batch, width = (None, None) if form == "onnx" else (1, model.max_history or 1)
    with files.replace_directory(folder) as aside:
        histories = _histories(model, batch)
        for name, function, inputs in _parts(model, batch, width, histories):
            content = convert(function, model)
            (aside / f"{name}{suffix}").write_bytes(content)
            _compare(f"{name}{suffix}", runner(content), function, inputs)
        (aside / VOCABULARY).write_bytes(lines_of(vocabulary.items.tolist()))
        if model.has_user_embeddings:
            (aside / USERS).write_bytes(lines_of(users))
        files.write_json(aside / CARD, {**facts(model, vocabulary, users), **(card or {})})


def check_export(folder: Path, form: str) -> None:
    """Raises UserError for an unknown form, one whose packages are not installed, or a folder of something else."""
    if form not in NEEDED:
        raise unknown_name("format", form, NEEDED)
    for name in NEEDED[form]:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UserError(f"{form} needs {name}: pip install 'bert4rec-tf[export]' ({error})") from error
    refuse_other_content(folder, f"encoder{SUFFIXES[form]}")


def _parts(
    model: Recommender, batch: int | None, width: int | None, histories: Sequence[Numbers]
) -> Iterator[tuple[str, Part, list[Numbers]]]:
    """Yields the name, the function and some inputs of the encoder, then of the scorer."""
    items, lengths = tf.TensorSpec([batch, width], tf.int32, "items"), tf.TensorSpec([batch], tf.int32, "lengths")
    if model.has_user_embeddings:

        @tf.function(input_signature=[items, lengths, tf.TensorSpec([batch], tf.int32, "users")])
        def encoder(items, lengths, users):
            return {"vectors": model.user_vectors({"items": items, "lengths": lengths, "users": users})}
    else:
        histories = [{name: rows for name, rows in one.items() if name != "users"} for one in histories]

        @tf.function(input_signature=[items, lengths])
        def encoder(items, lengths):
            users = tf.zeros_like(lengths)
            return {"vectors": model.user_vectors({"items": items, "lengths": lengths, "users": users})}

    yield "encoder", encoder, histories
    vectors = [{"vectors": encoder(**one)["vectors"].numpy()} for one in histories]
    depth = vectors[0]["vectors"].shape[1]

    @tf.function(input_signature=[tf.TensorSpec([batch, depth], tf.float32, "vectors")])
    def scorer(vectors):
        scores = model.score_vectors(vectors)
        return {"scores": tf.nn.log_softmax(scores) if model.scores_are_logits else scores}

    yield "scorer", scorer, vectors


def _histories(model: Recommender, batch: int | None) -> list[Numbers]:
    """Returns batches to compare on: short, full and empty histories of numbers that repeat."""
    most = model.max_history or 1
    lengths = [0, 1, most // 2, most]
    rows = np.zeros([len(lengths), most], np.int32)
    for row, length in enumerate(lengths):
        rows[row, :length] = 1 + (row + 7 * np.arange(length)) % model.num_items
    users = np.arange(len(lengths), dtype=np.int32) % (model.num_users or 1)
    whole = {"items": rows, "lengths": np.array(lengths, np.int32), "users": users}
    if batch is None:
        short = {**whole, "items": rows[:, : max(most // 2, 1)], "lengths": np.minimum(lengths, max(most // 2, 1))}
        return [whole, {name: column.astype(np.int32) for name, column in short.items()}]
    return [{name: column[[row]] for name, column in whole.items()} for row in range(len(lengths))]


def _to_onnx(function: Part, model: Recommender) -> bytes:
    from tf2onnx import convert

    with _quiet("tf2onnx"):
        made, _ = convert.from_function(function, input_signature=function.input_signature, opset=OPSET)
    return made.SerializeToString()


def _to_litert(function: Part, model: Recommender) -> bytes:
    module = tf.Module()
    module.weights, module.function = [weight.value for weight in model.weights], function
    # The interpreter finds inputs and outputs by name through a signature, and that is what a SavedModel carries.
    with tempfile.TemporaryDirectory() as scratch, _quiet("tensorflow"):
        tf.saved_model.save(module, scratch, signatures=function)
        return tf.lite.TFLiteConverter.from_saved_model(scratch).convert()


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Keeps a converter's notes to itself."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _onnx_runner(content: bytes) -> Callable[[Numbers], Numbers]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    outputs = [one.name for one in session.get_outputs()]
    return lambda inputs: dict(zip(outputs, session.run(None, {name: inputs[name] for name in names})))


def _litert_runner(content: bytes) -> Callable[[Numbers], Numbers]:
    from ai_edge_litert.interpreter import Interpreter

    signature = Interpreter(model_content=content).get_signature_runner("serving_default")
    names = signature.get_input_details()
    return lambda inputs: signature(**{name: inputs[name] for name in names})


def _compare(name: str, run: Callable[[Numbers], Numbers], function: Part, batches: Sequence[Numbers]) -> None:
    """Raises UserError where a file's numbers are not those of TensorFlow."""
    for inputs in batches:
        found = run(inputs)
        for output, expected in function(**inputs).items():
            if not np.allclose(found[output], expected, rtol=TOLERANCE, atol=TOLERANCE):
                error = np.abs(found[output] - np.asarray(expected)).max()
                raise UserError(f"{name}: `{output}` differ from TensorFlow's by {error:.2g}; nothing was written")
