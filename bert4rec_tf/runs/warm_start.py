"""Warm starts: reads the weights that a run starts from."""

import dataclasses
from pathlib import Path

from bert4rec_tf.config.run_record import ALL, RETRAIN, SELECT, Run
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.files import expand_path
from bert4rec_tf.foundation.stores import Url
from bert4rec_tf.models import Recommender, tf1_import
from bert4rec_tf.runs.phases import build_evidence, make_model
from bert4rec_tf.runs.transfer import StartWeights
from bert4rec_tf.runs.workdir import WorkDirectory
from bert4rec_tf.training import checkpoints, trainer
from bert4rec_tf.training.steps import make_strategy

ORIGINAL_CONFIG, ORIGINAL_VOCABULARY = "bert_config.json", "vocabulary.txt"
"""Files that must be in the same folder as a checkpoint of the authors' program."""


def resolve_initial(run: Run, init_from: str | Path | StartWeights) -> tuple[Run, StartWeights]:
    """Returns the run that starts from trained weights, and the weights.

    `init_from`: the weights or their path. Raises UserError as `read_start_weights` does, or if there are fewer devices
    than replicas.
    """
    if not isinstance(init_from, StartWeights):
        make_strategy(run.training.replicas)  # virtual devices must exist before reading computes anything
        init_from = read_start_weights(expand_path(init_from))
    return dataclasses.replace(run, initial_weights=init_from.fingerprint), init_from


def read_start_weights(path: Path) -> StartWeights:
    """Reads weights to start from.

    Args:
        path: a work directory (the weights of `all`, else of `retrain`, else the best of `select`), a checkpoint in one
            (`select/best.npz`, `retrain/step-000009000.npz`), or the prefix of a checkpoint of the authors' program
            (`model.ckpt-400000`) with ORIGINAL_CONFIG and ORIGINAL_VOCABULARY in the same folder.

    Raises UserError if it is none of these, or is damaged.
    """
    if path.is_dir():
        return _read_run(WorkDirectory(path), None, path)
    if path.is_file() and path.suffix == ".npz" and path.resolve().parent.name in (SELECT, RETRAIN, ALL):
        return _read_run(WorkDirectory(path.resolve().parents[1]), path, path)
    if not isinstance(path, Url) and _index_path(path).exists():
        model, words = tf1_import.load(path, path.with_name(ORIGINAL_CONFIG), path.with_name(ORIGINAL_VOCABULARY))
        origin = {"path": str(path.resolve()), "checkpoint": path.name}
        return StartWeights.from_model("bert4rec", model, words.items.tolist(), [], **origin)
    raise UserError(
        "`init_from` must be a work directory, a checkpoint in one (select/best.npz), or the prefix of a TensorFlow "
        f"checkpoint (model.ckpt-400000). Received: init_from={path}"
    )


def _read_run(workdir: WorkDirectory, checkpoint: Path | None, path: Path) -> StartWeights:
    config = workdir.read_config()
    run = Run.from_dict(config["run"])
    ids = workdir.read_ids()
    model = make_model(run, ids.vocabulary.num_items, config["num_users"], features=workdir.read_features())
    restored, step = _restore(model, workdir, checkpoint)
    origin = {"path": str(path.resolve()), "checkpoint": restored, "step": step, "dataset": run.dataset}
    if run.initial_weights is None:
        origin["data_fingerprint"] = config["data_fingerprint"]
    return StartWeights.from_model(run.model, model, list(ids.vocabulary.items), ids.users, **origin)


def _restore(model: Recommender, workdir: WorkDirectory, checkpoint: Path | None) -> tuple[str, int]:
    """Restores the trained weights of a folder into a model. Returns the name of the checkpoint and its step."""
    for phase in (ALL, RETRAIN) if checkpoint is None else ():
        if checkpoints.Series(workdir.path / phase).paths():
            build_evidence(model, workdir, phase)
            trainer.load_weights(model, workdir.path / phase)
            return phase, trainer.read_state(workdir.path / phase).step
    checkpoint = checkpoint or workdir.path / SELECT / trainer.BEST
    if not checkpoint.exists():
        raise UserError(f"{workdir.path}: holds no trained weights yet; run it with --mode=train first")
    build_evidence(model, workdir, checkpoint.resolve().parent.name)
    state = checkpoints.restore(checkpoint, {"model": model.variables})
    return f"{checkpoint.resolve().parent.name}/{checkpoint.name}", state["step"]


def _index_path(path: Path) -> Path:
    """Returns the index file of a TensorFlow checkpoint."""
    return path.with_name(f"{path.name}.index")
