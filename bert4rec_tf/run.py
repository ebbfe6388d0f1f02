"""Prepares, trains and evaluates a model, from a ratings file to its metrics.

    python -m bert4rec_tf.run --dataset=synthetic
    python -m bert4rec_tf.run --dataset=beauty --data_dir=DIR --workdir=runs/beauty

Settings come from a preset (--preset=fast, released or table2); every single one is also a flag. What is finished is
not done again: the same command goes on where it was stopped.
"""

import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from absl import app, flags

from bert4rec_tf import presets
from bert4rec_tf.config import Run, all_settings, field_type
from bert4rec_tf.data import datasets
from bert4rec_tf.errors import UserError, unknown_name
from bert4rec_tf.sequences import Sequences
from bert4rec_tf.workdir import WorkDirectory

FLAGS = flags.FLAGS
MODES = ("all", "prepare", "train", "evaluate")
DEFINE = {int: flags.DEFINE_integer, float: flags.DEFINE_float, bool: flags.DEFINE_boolean, str: flags.DEFINE_string}

flags.DEFINE_string("dataset", None, "name of the data set: beauty, steam, ml-1m, ml-20m, synthetic, ...")
flags.DEFINE_string("model", "bert4rec", "name of the model: bert4rec, pop")
flags.DEFINE_string("preset", "fast", "name of the settings to start from: fast, released, table2")
flags.DEFINE_integer("seed", 1, "seed of masks, initial weights, dropout and the order of examples")
flags.DEFINE_string(
    "data_dir", None, "folder of the data files (default: $BERT4REC_DATA, then the user's cache folder)"
)
flags.DEFINE_string("workdir", None, "folder of the run (default: runs/<dataset>-<model>-<digest of the settings>)")
flags.DEFINE_string("prepared_dir", None, "folder of training examples and candidates (default: in the workdir)")
flags.DEFINE_integer("processes", 1, "processes that prepare examples; any number gives the same files")
flags.DEFINE_string("mode", "all", "what to do: all, prepare, train or evaluate")
for name, field in all_settings().items():
    DEFINE[field_type(field)](name, None, f"{field.metadata['help']} (default: the preset's)")


def given_settings() -> dict[str, Any]:
    return {name: FLAGS[name].value for name in all_settings() if FLAGS[name].value is not None}


def folder(flag: str) -> Path | None:
    return Path(FLAGS[flag].value) if FLAGS[flag].value else None


def make_run() -> Run:
    """Returns the run that the flags ask for; without --dataset the one whose work directory is named."""
    settings = given_settings()
    if FLAGS.dataset is not None:
        return presets.make_run(FLAGS.dataset, FLAGS.model, FLAGS.preset, FLAGS.seed, **settings)
    given = [name for name in ("model", "preset", "seed") if FLAGS[name].present] + list(settings)
    if FLAGS.workdir is None or given:
        why = f", for --{given[0]} is given" if given else ", or the --workdir of a run"
        raise UserError(f"--dataset must be named{why}. Try --dataset=synthetic")
    return Run.from_dict(WorkDirectory(Path(FLAGS.workdir)).read_config()["run"])


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise UserError(f"Flags start with --. Received: {argv[1]!r}")
    if FLAGS.mode not in MODES:
        raise unknown_name("mode", FLAGS.mode, MODES)
    if FLAGS.processes < 1:
        raise UserError(f"`processes` must be at least 1. Received: processes={FLAGS.processes}")
    run = make_run()
    workdir = WorkDirectory.of(run, folder("workdir"), folder("prepared_dir"))
    if FLAGS.mode == "evaluate":
        workdir.read_config()
    sequences = datasets.load(run.dataset, folder("data_dir"))
    print(datasets.describe(run.dataset, sequences), flush=True)
    print(f"\nModel {run.model}, run {run.digest} in {workdir.path}", flush=True)
    if FLAGS.dataset is not None and run.model == "bert4rec" and not given_settings():
        preset = presets.find(FLAGS.preset, run.dataset)
        print(f"Preset {FLAGS.preset}. Expect: {preset.expect} Takes: {preset.takes}", flush=True)
    carry_out(run, sequences, workdir)


def carry_out(run: Run, sequences: Sequences, workdir: WorkDirectory) -> None:
    """Does what --mode names. Everything that needs TensorFlow begins here, after all that can be refused before."""
    import_tensorflow()
    from bert4rec_tf import pipeline, summary

    experiment = pipeline.Experiment(run, sequences, workdir, FLAGS.processes)
    if FLAGS.mode in ("all", "prepare"):
        experiment.prepare()
    if FLAGS.mode in ("all", "train"):
        model = experiment.train()
    if FLAGS.mode == "evaluate":
        model = experiment.trained_model()
    if FLAGS.mode in ("all", "evaluate"):
        print("\n" + summary.table(experiment.evaluate(model)))
    print("\n" + summary.places(workdir.path))


def import_tensorflow() -> None:
    """Imports TensorFlow without the notes that it writes at its start past every setting; a failure shows them."""
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as notes:
        os.dup2(notes.fileno(), 2)
        try:
            importlib.import_module("tensorflow")
        except BaseException:
            notes.seek(0)
            os.write(stderr, notes.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def parse(argv: list[str]) -> list[str]:
    """Reads the flags; a mistake in them ends in one line and exit code 2, as all mistakes of the user do."""
    try:
        if {"--help", "-h", "-help"} & set(argv):
            app.usage(shorthelp=True, writeto_stdout=True, exitcode=0)
        return FLAGS(argv)
    except flags.Error as error:
        end(str(error))


def guarded(argv: list[str]) -> None:
    try:
        main(argv)
    except UserError as error:
        end(str(error))
    except OSError as error:
        end(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except KeyboardInterrupt:
        print("\nStopped. The same command goes on from the last checkpoint.", file=sys.stderr)
        sys.exit(130)


def end(message: str) -> None:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    app.run(guarded, flags_parser=parse)
