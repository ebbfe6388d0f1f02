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

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from absl import app, flags

from bert4rec_tf import presets
from bert4rec_tf.config import Run, all_settings, field_type
from bert4rec_tf.errors import UserError, unknown_name
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


def make_run() -> Run:
    """Returns the run that the flags ask for; without --dataset the one whose work directory is named."""
    if FLAGS.dataset is None:
        if FLAGS.workdir is None:
            raise UserError("--dataset must be named, or --workdir of a run. Try --dataset=synthetic")
        return Run.from_dict(WorkDirectory(Path(FLAGS.workdir)).read_config()["run"])
    settings = {name: FLAGS[name].value for name in all_settings() if FLAGS[name].value is not None}
    return presets.make_run(FLAGS.dataset, FLAGS.model, FLAGS.preset, FLAGS.seed, **settings)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise UserError(f"Flags start with --. Received: {argv[1]!r}")
    if FLAGS.mode not in MODES:
        raise unknown_name("mode", FLAGS.mode, MODES)
    run = make_run()

    import_tensorflow()
    from bert4rec_tf import pipeline, summary
    from bert4rec_tf.data import datasets

    experiment = pipeline.open_experiment(run, None, FLAGS.data_dir, FLAGS.workdir, FLAGS.prepared_dir, FLAGS.processes)
    print(datasets.describe(run.dataset, experiment.sequences), flush=True)
    print(f"\nModel {run.model}, run {run.digest} in {experiment.workdir.path}", flush=True)
    if FLAGS.mode in ("all", "prepare"):
        experiment.prepare()
    if FLAGS.mode in ("all", "train"):
        model = experiment.train()
    if FLAGS.mode == "evaluate":
        model = experiment.trained_model()
    if FLAGS.mode in ("all", "evaluate"):
        print("\n" + summary.table(experiment.evaluate(model)))
    print("\n" + summary.places(experiment.workdir.path))


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
    except KeyboardInterrupt:
        print("\nStopped. The same command goes on from the last checkpoint.", file=sys.stderr)
        sys.exit(130)


def end(message: str) -> None:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    app.run(guarded, flags_parser=parse)
