"""Prepares, trains, evaluates and exports a model, from a ratings file to a SavedModel.

    bert4rec run --dataset=synthetic
    bert4rec run --dataset=beauty --workdir=runs/beauty
    bert4rec run --interactions=ratings.csv --workdir=runs/own

Settings come from a preset (--preset=fast, best, released or table2), and each is also a flag. Run the same command
again to resume: finished parts are not repeated, except the evaluation on the test items.
"""

import functools
import os
import re
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from absl import app, flags, logging

from bert4rec_tf.config import data_names, popularity_option, presets
from bert4rec_tf.config.data_names import Interactions
from bert4rec_tf.config.machines import Machines
from bert4rec_tf.config.model_settings import (
    COUNTING_MODELS,
    ITEM_FEATURES,
    MODEL_SETTINGS,
    USER_FEATURES,
    settings_for_features,
)
from bert4rec_tf.config.run_record import TRAININGS, Run, list_settings, make_help_texts
from bert4rec_tf.config.setting_fields import collect_given_flags, describe_setting, get_field_type
from bert4rec_tf.config.time_budget import Budget
from bert4rec_tf.data.reading.feature_files import with_features
from bert4rec_tf.data.sequences import LeaveOneOut, Sequences
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.export.histories import HISTORIES, keep_last
from bert4rec_tf.export.layout import FORMATS, SAVED_MODEL
from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.foundation import startup
from bert4rec_tf.foundation.errors import UserError, unknown_name_error, wrong_type_error
from bert4rec_tf.foundation.files import expand_local_path, expand_path
from bert4rec_tf.foundation.startup import exit_with_error, import_tensorflow
from bert4rec_tf.runs import summary
from bert4rec_tf.runs.workdir import WorkDirectory

FLAGS = flags.FLAGS
SAVED_MODEL_FLAGS = ("k", "with_histories", "popularity_correction")
"""Flags for an export as a SavedModel alone."""

MODES = ("all", "prepare", "train", "evaluate", "export")
TRAINS = ("all", "train")
"""The modes that use all machines of TF_CONFIG. The chief does the others alone."""

EXPORTS = ("all", "export")
USED_BY = {
    "minutes": TRAINS,
    "format": ("export",),
    "export_dir": EXPORTS,
    "k": EXPORTS,
    "with_histories": EXPORTS,
    "popularity_correction": EXPORTS,
}
"""Flag -> the modes that use it, for the flags that not all modes use."""

MAX_COUNT = 1_000_000
"""The limit of --threads, --k and --with_histories."""

NUMBERS = ("int", "float", "bool")
LOCAL, SPARK = "local", "spark"
DEFINE = {int: flags.DEFINE_integer, float: flags.DEFINE_float, bool: flags.DEFINE_boolean, str: flags.DEFINE_string}

flags.DEFINE_string("dataset", None, "data set: beauty, steam, ml-1m, ml-20m, synthetic, ...")
flags.DEFINE_string("source", "processed", "processed (the authors' file) or raw (the publisher's)")
flags.DEFINE_string(
    "interactions",
    None,
    "your own data instead of --dataset: a file, a pattern or a folder of Parquet files (docs/data.md)",
)
flags.DEFINE_string(
    "item_features",
    None,
    "CSV or Parquet with a column of item ids and columns of features, for bert4rec and sasrec (docs/features.md)",
)
flags.DEFINE_string("user_features", None, "CSV or Parquet as for --item_features, with a column of user ids")
flags.DEFINE_boolean("new_items", False, "also rank items that occur only in --item_features")
flags.DEFINE_string("model", "bert4rec", "model: " + ", ".join(MODEL_SETTINGS))
flags.DEFINE_string("preset", "fast", "preset of settings: " + ", ".join(presets.NAMES))
flags.DEFINE_integer("seed", 1, "seed of masks, initial weights, dropout and the order of examples")
flags.DEFINE_string(
    "data_dir", None, "folder of downloaded and converted data (default: $BERT4REC_DATA, else ~/.cache/bert4rec_tf)"
)
flags.DEFINE_string("workdir", None, "folder of the run (default: runs/<dataset>-<model>-<digest of the settings>)")
flags.DEFINE_string("prepared_dir", None, "folder of training examples and candidates (default: in the workdir)")
flags.DEFINE_integer("threads", None, "threads to compute with (default: all); rounding depends on it")
flags.DEFINE_float(
    "minutes", None, "a budget of time for everything: plans the steps and, if they are too few, width and --max_length"
)
flags.DEFINE_float("checkpoint_seconds", 120.0, "seconds between checkpoints: what a killed training loses at most")
flags.DEFINE_string(
    "init_from",
    None,
    "trained weights to start from: a workdir, a training in one, or the authors' checkpoint",
)
flags.DEFINE_integer("k", 10, "how many items the exported model recommends")
flags.DEFINE_integer(
    "with_histories",
    None,
    "keep every user's last N items in the exported model, so that a user's id is enough to ask for recommendations",
)
flags.DEFINE_string("export_dir", None, "folder of the exported model (default: the format's name in the workdir)")
flags.DEFINE_string("format", SAVED_MODEL, "what --mode=export writes: " + ", ".join(FORMATS))
flags.DEFINE_boolean("verbose", False, "also print every metric and the settings chosen for you")
flags.DEFINE_string("mode", "all", "what to do: all, prepare, train, evaluate or export")
flags.DEFINE_string("engine", LOCAL, "what --mode=prepare reads --interactions with: local or spark (docs/cluster.md)")
flags.DEFINE_string(
    "master", None, "with --engine=spark: spark://HOST:7077, local[2], ... (default: Spark's own setting)"
)
flags.DEFINE_float(
    "popularity_correction", 0.0, "alpha >= 0: the exported model ranks by score - alpha log(count + 1) by default"
)
for name, field in data_names.list_column_options().items():
    DEFINE[get_field_type(field)](name, None, describe_setting(field))
HELP_GROUPS = {
    "data": (
        *("dataset", "interactions", "user_column", "item_column", "time_column", "test_from", "item_features"),
        "data_dir",
    ),
    "model": ("model", "preset", "max_length", "seed", "init_from"),
    "time": ("minutes", "steps", "patience", "threads", "checkpoint_seconds"),
    "output": ("workdir", "export_dir", "k", "with_histories", "mode", "verbose"),
}
"""Group -> its flags that --help shows. --helpfull shows all."""
HELP = make_help_texts()
for name, field in list_settings().items():
    DEFINE[get_field_type(field)](name, None, f"{HELP[name]} (default: the preset's)")


def collect_settings() -> dict[str, Any]:
    """Returns the settings given as flags, and those with which the model uses the given features."""
    return {**settings_for_features(FLAGS.model, collect_features()), **collect_given_flags(FLAGS, list_settings())}


def collect_features() -> dict[str, str]:
    """Returns the files of features: `item_features`, `user_features`, both or none."""
    return collect_given_flags(FLAGS, (ITEM_FEATURES, USER_FEATURES))


def read_folder(flag: str) -> Path | None:
    if not FLAGS[flag].value:
        return None
    return expand_path(FLAGS[flag].value) if flag == "export_dir" else expand_local_path(FLAGS[flag].value, flag)


def refuse_flags(names: Iterable[str], why: str) -> None:
    """Raises UserError if one of these flags is given."""
    for name in names:
        if FLAGS[name].present:
            raise UserError(f"--{name} {why}")


def collect_interactions() -> Interactions | None:
    """Returns the user's own data; None without --interactions."""
    options = collect_given_flags(FLAGS, data_names.list_column_options())
    if FLAGS.interactions is not None:
        refuse_flags(("dataset", "source"), "cannot be used with --interactions")
        return Interactions(FLAGS.interactions, **options)
    if options:
        raise UserError(f"--{next(iter(options))} needs --interactions=FILE")
    return None


def make_run(machines: Machines | None, budget: Budget | None) -> tuple[Run, Interactions | None, Sequences | None]:
    """Returns the run that the flags name, the user's own files, if any, and their content, if it was read.

    It is read for --interactions, and for a data set without the preset, because its size decides settings. Without
    --dataset and --interactions, the run is the one in --workdir. On a cluster, each machine is a replica unless
    --replicas says otherwise.
    """
    settings, interactions = collect_settings(), collect_interactions()
    if machines is not None and FLAGS.mode in TRAINS:
        settings.setdefault("replicas", machines.count)
    named = (FLAGS.model, FLAGS.preset, FLAGS.seed, FLAGS.source)
    if FLAGS.dataset is not None or interactions is not None:
        data = interactions or data_names.add_source(FLAGS.dataset, FLAGS.source)
        presets.check_settings(data, *named, **settings)
        if budget is not None:
            budget.check_settings(FLAGS.model, **settings)
        sequences = None
        if interactions is not None or presets.uses_own_data_rule(FLAGS.preset, data, FLAGS.model):
            sequences = load_data(interactions.name if interactions else data, interactions, collect_features())
        run = presets.make_run(data, *named, sequences, **settings)
        if budget is not None:
            budget.check(run)
        return run, interactions, sequences
    decisive = ("source", "model", "preset", "seed", "init_from")
    present = [name for name in decisive if FLAGS[name].present] + list(collect_features()) + list(collect_settings())
    if FLAGS.workdir is None or present:
        when = f" with --{present[0]}" if present else ", unless --workdir names a run"
        raise UserError(f"--dataset is required{when}. Try --dataset=synthetic, or --interactions=FILE")
    config = WorkDirectory(read_folder("workdir")).read_config()
    if budget is not None:
        budget.check(config.run)
    return config.run, None if config.interactions is None else Interactions(**config.interactions), None


def check_flags(argv: list[str]) -> None:
    """Raises UserError for mistakes that need no data to be found."""
    if len(argv) > 1:
        raise UserError(f"Flags start with --. Received: {argv[1]!r}")
    for name, choices in {"mode": MODES, "format": FORMATS, "engine": (LOCAL, SPARK)}.items():
        if FLAGS[name].value not in choices:
            raise unknown_name_error(name, FLAGS[name].value, choices)
    if FLAGS.engine == SPARK and FLAGS.mode != "prepare":
        raise UserError(f"--engine={SPARK} needs --mode=prepare. Received: mode={FLAGS.mode}")
    if FLAGS.engine != SPARK:
        refuse_flags(["master"], f"needs --engine={SPARK}. Received: engine={FLAGS.engine}")
    for name in ("threads", "k", "with_histories"):
        if FLAGS[name].value is not None and not 1 <= FLAGS[name].value <= MAX_COUNT:
            raise UserError(
                f"`{name}` must be at least 1 and at most {MAX_COUNT}. Received: {name}={FLAGS[name].value}"
            )
    if not FLAGS.checkpoint_seconds >= 0:
        seconds = FLAGS.checkpoint_seconds
        raise UserError(f"`checkpoint_seconds` must be at least 0. Received: checkpoint_seconds={seconds}")
    for name, modes in USED_BY.items():
        if FLAGS.mode not in modes:
            refuse_flags([name], f"needs --mode={' or '.join(modes)}. Received: mode={FLAGS.mode}")
    if FLAGS.format != SAVED_MODEL:
        refuse_flags(SAVED_MODEL_FLAGS, f"needs --format={SAVED_MODEL}. Received: format={FLAGS.format}")
    popularity_option.check_correction(FLAGS.popularity_correction)
    for name in ("workdir", "prepared_dir", "export_dir"):
        read_folder(name)


def main(argv: list[str]) -> None:
    begin = time.monotonic()
    logging.set_verbosity(logging.ERROR)  # else AutoGraph warns of a full disk for each function, and stores of keys
    check_flags(argv)
    machines = Machines.read()
    if machines is not None and machines.index and FLAGS.mode not in TRAINS:
        print(f"Worker 0 does --mode={FLAGS.mode}; this is worker {machines.index}")
        return
    budget = None if FLAGS.minutes is None else Budget(FLAGS.minutes, collect_settings(), begin)
    run, interactions, sequences = make_run(machines, budget)
    if machines is not None and FLAGS.mode in TRAINS:
        join_machines(machines, run)
    run, start = resolve_init_from(run)
    workdir = WorkDirectory.from_run(run, read_folder("workdir"), read_folder("prepared_dir"), FLAGS.minutes)
    names_data = FLAGS.dataset is not None or FLAGS.interactions is not None
    if FLAGS.mode in ("evaluate", "export") and names_data:
        workdir.check_run(run)
    needs_data = FLAGS.mode != "export" or FLAGS.with_histories is not None
    if needs_data and sequences is None:
        sequences = load_data(run.dataset, interactions, collect_features() if names_data else workdir.read_features())
    if FLAGS.mode == "export":
        export_model(workdir, sequences)
        return
    digest = "" if FLAGS.minutes else f", run {run.digest}"  # a plan changes the run
    print(f"\nModel {run.model}{digest} in {workdir.path}", flush=True)
    for line in describe_training(run, sequences):
        print(line, flush=True)
    carry_out(run, sequences, workdir, interactions=interactions, init_from=start, budget=budget)


def describe_training(run: Run, sequences: Sequences) -> list[str]:
    """Returns what the trainings of a run begin with; nothing if there are none."""
    if FLAGS.mode not in TRAINS or run.model in COUNTING_MODELS:
        return []
    lines = [
        f"Training on {sequences.num_actions:,} actions of {sequences.num_users:,} users. The time left is shown after "
        "a few steps. Stop at any time: the same command resumes."
    ]
    if FLAGS.verbose:
        steps = f"at most {run.training.steps:,} steps, {run.training.warmup_steps:,} of them warm-up"
        lines.append(f"Trainings: {', '.join(TRAININGS[run.training.protocol])}, each of {steps}")
    return lines


def join_machines(machines: Machines, run: Run) -> None:
    """Waits for the other machines, and checks that they do the same."""
    print(f"Worker {machines.index} of {machines.count}: waiting for the others", flush=True)
    machines.wait_for_others()
    start_tensorflow()
    from bert4rec_tf.runs.environment import list_versions
    from bert4rec_tf.training import workers

    workers.join_team(machines, run.training.replicas)
    workers.current_team().agree({"run": str(run.to_dict()), "versions": str(list_versions()), "mode": FLAGS.mode})


def resolve_init_from(run: Run) -> tuple[Run, Any]:
    """Returns the run, which starts from --init_from if given, and these weights, else None."""
    if FLAGS.init_from is None:
        return run, None
    start_tensorflow()
    from bert4rec_tf.runs import warm_start

    return warm_start.resolve_initial(run, FLAGS.init_from)


def load_data(dataset: str, interactions: Interactions | None, features: Mapping[str, Any]) -> Sequences:
    """Returns the data with features. Prints what was read. `features`: name of the flag -> file or `Features`.

    Raises UserError if they cannot be read, or nothing can be measured on them: now, and not after TensorFlow's start.
    """
    if FLAGS.engine == SPARK and interactions is None:
        raise UserError(f"--engine={SPARK} needs --interactions=FILE. Received: dataset={dataset}")
    if FLAGS.engine == SPARK:
        start_tensorflow()
        from bert4rec_tf.cluster.spark import Spark

        sequences, report = Spark(FLAGS.master).load(interactions, datasets.resolve_data_folder(FLAGS.data_dir))
    else:
        sequences, report = datasets.load_with_report(interactions or dataset, FLAGS.data_dir)
    print(datasets.describe_data(dataset, sequences, report), flush=True)
    num_items, sequences = sequences.num_items, with_features(sequences, **features, new_items=FLAGS.new_items)
    for name, values in sequences.features.items():
        print(f"{name}: {values}", flush=True)
    if sequences.num_items > num_items:
        print(f"{sequences.num_items - num_items:,} items of {ITEM_FEATURES} have no actions", flush=True)
    if reason := LeaveOneOut(sequences).why_unmeasurable():
        raise UserError(f"{reason}. Received: dataset={dataset}")
    return sequences


@functools.cache
def start_tensorflow() -> None:
    """Imports TensorFlow, which is slow: call it only after the flags and the data have been checked."""
    import_tensorflow()
    if FLAGS.threads is not None:
        from bert4rec_tf.runs.environment import set_threads

        set_threads(FLAGS.threads)


def carry_out(run: Run, sequences: Sequences, workdir: WorkDirectory, **options: Any) -> None:
    """Does what --mode says, and exports. `options`: further arguments of `driver.open_experiment`."""
    start_tensorflow()
    from bert4rec_tf.runs import driver, exporting

    if FLAGS.mode == "all":
        exporting.check_export(read_folder("export_dir") or workdir.export)
    options |= {"workdir": workdir.path, "prepared_dir": workdir.prepared}
    experiment = driver.open_experiment(run, sequences, checkpoint_seconds=FLAGS.checkpoint_seconds, **options)
    if experiment.initial is not None:
        print(summary.describe_start(experiment.initial), flush=True)
    with experiment.workdir.lock():
        result = driver.run_mode(experiment, FLAGS.mode)
        if not experiment.team.is_chief:
            print(f"Worker {experiment.team.index} has done its part; worker 0 measures and exports")
            return
        if result.metrics:
            print("\n" + (summary.make_table if FLAGS.verbose else summary.make_short_table)(result.metrics))
        is_requested = any(FLAGS[name].present for name in ("export_dir", *SAVED_MODEL_FLAGS))
        if FLAGS.mode == "all" and (is_requested or not workdir.export.exists()):
            export_model(experiment.workdir, sequences)
    if result.metrics:
        where = "" if FLAGS.verbose else f"All metrics: {workdir.metrics}; --verbose prints them"
        print("\n" + "\n".join(filter(None, [summary.compare_with_counting(result.metrics), where])))
    if FLAGS.mode == "all":
        model_folder = read_folder("export_dir") or workdir.path
        user = sequences.users[0] if result.model.needs_users else None
        print(summary.make_next_command(model_folder, sequences.vocabulary.items[:2].tolist(), user))


def export_model(workdir: WorkDirectory, sequences: Sequences | None) -> None:
    """Exports as the flags say. `sequences`: for the histories; None if the export has none."""
    histories = None
    if FLAGS.with_histories is not None:
        workdir.check_data(sequences)
        histories = keep_last(sequences, FLAGS.with_histories)
    options = ExportOptions(FLAGS.k, FLAGS.popularity_correction, histories)
    start_tensorflow()
    from bert4rec_tf.runs import exporting

    path = exporting.export(workdir, read_folder("export_dir"), options, FLAGS.format)
    if FLAGS.mode == "export":
        print(f"{path}: the exported model, as {FLAGS.format}")
    if histories is not None:
        size = max(1, round((path / HISTORIES).stat().st_size / 1e3))
        print(f"{path / HISTORIES}: the last {FLAGS.with_histories} items of every user, {size:,} kB")


def parse_flags(argv: list[str]) -> list[str]:
    """Reads the flags. A mistake prints one line and ends with exit code 2, like every user error."""
    try:
        if {"--help", "-h", "-help"} & set(argv):
            print(make_help())
            sys.exit(0)
        return FLAGS(argv)
    except (flags.Error, ValueError) as error:
        wrong = re.match(r"flag --(\w+)=(.*?): ", str(error), re.DOTALL)
        if isinstance(error, flags.IllegalFlagValueError) and wrong and FLAGS[wrong[1]].flag_type() in NUMBERS:
            error = wrong_type_error(wrong[1], FLAGS[wrong[1]].flag_type(), wrong[2])
        exit_with_error(str(error))


def make_help() -> str:
    lines = [__doc__.strip()]
    for title, names in HELP_GROUPS.items():
        lines += ["", f"{title}:"]
        for name in names:
            text = FLAGS[name].help.removesuffix(" (default: the preset's)")
            lines += textwrap.wrap(text, 100, initial_indent=f"  --{name:<20} ", subsequent_indent=" " * 25)
    return "\n".join([*lines, "", "Every setting of the models and their training: bert4rec run --helpfull"])


def run_or_end(argv: list[str]) -> None:
    try:
        startup.exit_on_error(lambda: main(argv))
    except Exception as error:
        if not isinstance(error, MemoryError) and type(error).__name__ != "ResourceExhaustedError":
            raise
        exit_with_error(
            f"There is not enough memory for these settings; reduce the largest of them ({str(error)[:200]})"
        )


if __name__ == "__main__":
    app.run(run_or_end, flags_parser=parse_flags)
