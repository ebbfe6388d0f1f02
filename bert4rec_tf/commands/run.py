"""Prepares, trains, evaluates and exports a model, from a ratings file to a SavedModel.

    bert4rec run --dataset=synthetic
    bert4rec run --dataset=beauty --workdir=runs/beauty
    bert4rec run --interactions=ratings.csv --workdir=runs/own

Settings come from a preset (--preset=fast, best, released or table2), and each is also a flag. Run the same command
again to resume: finished parts are not repeated, except the evaluation on the test items.
"""

import functools
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from absl import app, flags, logging

from bert4rec_tf.commands import summary
from bert4rec_tf.commands.flags import HELP, define_flags, list_fields, list_helps, read_flags
from bert4rec_tf.commands.run_options import SAVED_MODEL_FLAGS, SPARK, TRAINS, Request, RunOptions
from bert4rec_tf.config import data_names, presets
from bert4rec_tf.config.data_names import Interactions, is_own, list_column_options
from bert4rec_tf.config.machines import Machines
from bert4rec_tf.config.model_settings import COUNTING_MODELS, ITEM_FEATURES
from bert4rec_tf.config.run_record import TRAININGS, Run, list_settings, make_help_texts
from bert4rec_tf.config.time_budget import Budget
from bert4rec_tf.data.reading.feature_files import with_features
from bert4rec_tf.data.sequences import LeaveOneOut, Sequences
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.export.histories import HISTORIES, keep_last
from bert4rec_tf.export.layout import SAVED_MODEL, has_model
from bert4rec_tf.export.options import ExportOptions
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.startup import import_tensorflow
from bert4rec_tf.runs.folder import WorkDirectory

OF_PRESET = " (default: the preset's)"
HELP_GROUPS = {
    "data": (
        *("dataset", "interactions", "user_column", "item_column", "time_column", "columns", "test_from"),
        *("item_features", "data_dir"),
    ),
    "model": ("model", "preset", "max_length", "seed", "init_from"),
    "time": ("minutes", "steps", "patience", "threads", "compile", "checkpoint_seconds"),
    "output": ("workdir", "export_dir", "k", "with_histories", "mode", "verbose"),
}
"""Group -> its flags that --help shows. --helpfull shows all."""

define_flags(flags.FLAGS, {**list_fields(RunOptions), **list_column_options()})
define_flags(flags.FLAGS, list_settings(), {name: text + OF_PRESET for name, text in make_help_texts().items()})


def main(arguments: Sequence[str]) -> None:
    """Does what a command line says, as an absl program."""
    app.run(carry_out, ["bert4rec run", *arguments], flags_parser=parse_request)


def parse_request(argv: Sequence[str]) -> Request:
    """Returns what the flags ask for. With --help, prints the help and ends. Raises UserError for a mistake."""
    if HELP & set(argv):
        print(make_help())
        sys.exit(0)
    values, words = read_flags(flags.FLAGS, argv[1:])
    if words:
        raise UserError(f"Flags start with --. Received: {words[0]!r}")
    return Request.from_flags(values)


def make_help() -> str:
    lines = [(__doc__ or "").strip()]
    for title, names in HELP_GROUPS.items():
        lines += [
            "",
            f"{title}:",
            *list_helps({name: flags.FLAGS[name].help.removesuffix(OF_PRESET) for name in names}),
        ]
    return "\n".join([*lines, "", "Every setting of the models and their training: bert4rec run --helpfull"])


def carry_out(request: Request) -> None:
    """Makes and does the run that is asked for, in the order of the work."""
    options, begin = request.options, time.monotonic()
    logging.set_verbosity(logging.ERROR)  # else AutoGraph warns of a full disk for each function, and stores of keys
    machines = Machines.read()
    if machines is not None and machines.index and options.mode not in TRAINS:
        print(f"Worker 0 does --mode={options.mode}; this is worker {machines.index}")
        return
    budget = read_budget(request, begin)
    run, interactions, sequences = resolve_run(request, machines, budget)
    if machines is not None and options.mode in TRAINS:
        join_machines(machines, run, request)
    start = None
    if options.init_from is not None:
        start_tensorflow(options)
        from bert4rec_tf.runs import warm_start

        run, start = warm_start.resolve_initial(run, options.init_from)
    workdir = WorkDirectory.from_run(run, request.workdir, request.prepared_dir, budget)
    if options.mode in ("evaluate", "export") and request.names_data:
        workdir.check_run(run)
    needs_data = options.mode != "export" or options.with_histories
    if needs_data and sequences is None:
        features = request.features if request.names_data else workdir.read_features()
        sequences = load_data(request, run.dataset, interactions, features)
    if options.mode == "export" or sequences is None:
        export_model(request, workdir, sequences)
        return
    digest = "" if budget is not None else f", run {run.digest}"  # a plan changes the run
    print(f"\nModel {run.model}{digest} in {workdir.path}", flush=True)
    if options.mode in TRAINS and run.model not in COUNTING_MODELS:
        sizes = f"{sequences.num_actions:,} actions of {sequences.num_users:,} users"
        note = "The time left is shown after a few steps. Stop at any time: the same command resumes."
        print(f"Training on {sizes}. {note}", flush=True)
        if options.verbose:
            steps = f"at most {run.training.steps:,} steps, {run.training.warmup_steps:,} of them warm-up"
            print(f"Trainings: {', '.join(TRAININGS[run.training.protocol])}, each of {steps}", flush=True)
    do_mode(request, run, sequences, workdir, interactions=interactions, init_from=start, budget=budget)


def read_budget(request: Request, begin: float) -> Budget | None:
    """Returns the time for the run: of --minutes, or without a name of data the one that --workdir was not planned for.

    `begin`: as in `Budget`.
    """
    minutes, named_settings = request.options.minutes, list(request.settings)
    if not request.names_data and request.workdir is not None:
        workdir = WorkDirectory(request.workdir)
        budget = workdir.read_unplanned_budget()
        if budget is None and minutes is not None and workdir.config.exists() and workdir.can_be_planned():
            raise UserError(
                "`minutes` needs --interactions or --dataset again, and every setting that must not change, because "
                f"this run has no plan yet. Received: minutes={minutes:g}, workdir={workdir.path}"
            )
        if budget is not None:
            minutes, named_settings = budget.minutes if minutes is None else minutes, list(budget.named_settings)
    return None if minutes is None else Budget(minutes, named_settings, begin)


def resolve_run(
    request: Request, machines: Machines | None, budget: Budget | None
) -> tuple[Run, Interactions | None, Sequences | None]:
    """Returns the run that the flags name, the user's own files, if any, and their content, if it was read.

    It is read for --interactions, and for a data set without the preset, because its size decides settings. Without
    --dataset and --interactions, the run is the one in --workdir. On a cluster, each machine is a replica unless
    --replicas says otherwise.
    """
    options, settings, interactions = request.options, dict(request.settings), request.interactions
    if not request.names_data:
        names = ("source", "model", "preset", "seed", "init_from", *request.features, *settings)
        refused_names = [name for name in names if name in {*request.given_flags, *settings}]
        if request.workdir is None or refused_names:
            condition = f" with --{refused_names[0]}" if refused_names else ", unless --workdir names a run"
            raise UserError(f"--dataset is required{condition}. Try --dataset=synthetic, or --interactions=FILE")
        config = WorkDirectory(request.workdir).read_config()
        if budget is not None:
            budget.check(config.run.model, **config.run.flatten())
        return config.run, None if config.interactions is None else Interactions(**config.interactions), None
    if machines is not None:  # in all modes: it is a part of the run
        settings.setdefault("replicas", machines.count)
    preset_names = (request.model, options.preset, options.seed, options.source)
    name = interactions.name if interactions else data_names.add_source(options.dataset or "", options.source)
    data = interactions or name
    presets.check_settings(data, *preset_names, **settings)
    if budget is not None:
        budget.check(request.model, **settings)
    sequences = None
    if interactions is not None or presets.uses_own_data_rule(options.preset, name, request.model):
        sequences = load_data(request, name, interactions, request.features)
    run = presets.make_run(data, *preset_names, sequences, **settings)
    return run, interactions, sequences


def join_machines(machines: Machines, run: Run, request: Request) -> None:
    """Waits for the other machines, and checks that they do the same."""
    print(f"Worker {machines.index} of {machines.count}: waiting for the others", flush=True)
    machines.wait_for_others()
    start_tensorflow(request.options)
    from bert4rec_tf.foundation.environment import list_versions
    from bert4rec_tf.training import workers

    workers.join_team(machines, run.training.replicas)
    must_agree = {"run": str(run.to_dict()), "versions": str(list_versions()), "mode": request.options.mode}
    workers.current_team().agree(must_agree)


def load_data(
    request: Request, dataset: str, interactions: Interactions | None, features: Mapping[str, Any]
) -> Sequences:
    """Returns the data with features. Prints what was read. `features`: name of the flag -> file or `Features`.

    Raises UserError if they cannot be read, or nothing can be measured on them: now, and not after TensorFlow's start.
    """
    options = request.options
    if options.engine != SPARK:
        sequences, report = datasets.load_with_report(interactions or dataset, options.data_dir)
    elif interactions is None:
        raise UserError(f"--engine={SPARK} needs --interactions=FILE. Received: dataset={dataset}")
    else:
        start_tensorflow(options)
        from bert4rec_tf.cluster.spark import Spark

        sequences, report = Spark(options.master).load(interactions, datasets.resolve_data_folder(options.data_dir))
    print(datasets.describe_data(dataset, sequences, report), flush=True)
    num_items, sequences = sequences.num_items, with_features(sequences, **features, new_items=options.new_items)
    for name, values in sequences.features.items():
        print(f"{name}: {values}", flush=True)
    if sequences.num_items > num_items:
        print(f"{sequences.num_items - num_items:,} items of {ITEM_FEATURES} have no actions", flush=True)
    if reason := LeaveOneOut(sequences).why_unmeasurable():
        raise UserError(reason if is_own(dataset) else f"{reason}. Received: dataset={dataset}")
    return sequences


@functools.cache
def start_tensorflow(options: RunOptions) -> None:
    """Imports TensorFlow, which is slow: call it only after the flags and the data have been checked."""
    import_tensorflow()
    if options.deterministic:
        from bert4rec_tf.foundation.devices import make_deterministic

        make_deterministic()
    if options.threads is not None:
        from bert4rec_tf.foundation.environment import set_threads

        set_threads(options.threads)


def do_mode(
    request: Request, run: Run, sequences: Sequences, workdir: WorkDirectory, **experiment_options: Any
) -> None:
    """Does what --mode says, and exports. `experiment_options`: arguments of `open_experiment`."""
    options = request.options
    start_tensorflow(options)
    from bert4rec_tf.runs import exporting
    from bert4rec_tf.runs.experiment import open_experiment, run_mode

    is_requested = request.given_flags & {"export_dir", *SAVED_MODEL_FLAGS}
    exports = options.mode == "all" and (is_requested or not has_model(workdir.export))
    experiment = open_experiment(
        run, sequences, workdir.path, workdir.prepared, execution=options, **experiment_options
    )
    if (initial := experiment.workdir.read_config().initial) is not None:
        print(summary.describe_start(initial), flush=True)
    with experiment.workdir.lock():
        if exports and not experiment.workdir.is_read_only:
            exporting.check_export(request.export_dir or workdir.export, experiment.workdir)
        result = run_mode(experiment, options.mode)
        if experiment.workdir.is_read_only:
            print("This worker has done its part; worker 0 measures and exports")
            return
        if result.metrics:
            print("\n" + (summary.make_table if options.verbose else summary.make_short_table)(result.metrics))
        exporting.keep_attributes(experiment.workdir, request.features.get(ITEM_FEATURES), sequences.columns)
        if exports:
            export_model(request, experiment.workdir, sequences)
    lines = [] if options.verbose or not result.metrics else [f"All metrics: {workdir.metrics}; --verbose prints them"]
    if options.mode == "all":
        user = sequences.users[0] if result.model.needs_users else None
        items = sequences.vocabulary.items[:2].tolist()
        lines.append(summary.make_next_command(request.export_dir or workdir.path, items, user))
    if result.metrics:
        lines.append(summary.compare_with_counting(result.metrics))
    if lines:
        print("\n" + "\n".join(filter(None, lines)))


def export_model(request: Request, workdir: WorkDirectory, sequences: Sequences | None) -> None:
    """Exports as the flags say, and else as the older export in the folder, if there is one.

    `sequences`: for the histories; None if the flags say nothing of them, or that there are none.
    """
    options, histories = request.options, None
    keeps_histories = options.mode == "export" and options.with_histories is None
    if sequences is not None and not keeps_histories and options.with_histories != 0:
        workdir.check_data(sequences)
        max_items = options.with_histories
        histories = sequences if max_items is None else keep_last(sequences, max_items)
    start_tensorflow(options)
    from bert4rec_tf.runs import exporting

    older_choices = exporting.DEFAULT
    if options.format == SAVED_MODEL:
        older_choices = exporting.read_options(workdir, request.export_dir or workdir.export, keeps_histories)
    choices = ExportOptions(
        options.k if "k" in request.given_flags else older_choices.k,
        options.popularity_correction
        if "popularity_correction" in request.given_flags
        else older_choices.popularity_correction,
        older_choices.histories if keeps_histories else histories,
    )
    path = exporting.export(workdir, request.export_dir, choices, options.format)
    if options.mode == "export":
        print(f"{path}: the exported model, as {options.format}")
    if histories is not None and options.with_histories:
        size = max(1, round((path / HISTORIES).stat().st_size / 1e3))
        print(f"{path / HISTORIES}: the last {options.with_histories} items of every user, {size:,} kB")
