"""`python -m experiments`: does the missing runs of the paper's tables and figures, and writes the report."""

import argparse
import dataclasses
import os
import re
import signal
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NoReturn

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from bert4rec_tf.data.sources import datasets
from bert4rec_tf.foundation.errors import UserError, unknown_name_error, wrong_type_error
from bert4rec_tf.foundation.startup import exit_on_error, import_tensorflow
from bert4rec_tf.foundation.stores import expand_path
from bert4rec_tf.foundation.warning import FileWarning, warn
from experiments import merging
from experiments.findings import Findings
from experiments.line_fields import FAILED
from experiments.plan import PRESETS, Plan
from experiments.processes import start_server
from experiments.results import Results
from experiments.sweep import Sweep, show
from experiments.tables import DATASETS, QUICK_DATASETS, TABLES, make_label

HERE = Path(__file__).parent
NOT_TUNED = ("list", "merge", "report", "tables", "figures", "jobs", "time_budget", "results")
"""Flags that --tune refuses."""


class Parser(argparse.ArgumentParser):
    """Raises UserError for a mistake in the arguments, instead of printing the usage and exiting."""

    def error(self, message: str) -> NoReturn:
        if match := re.fullmatch(r"argument -+(\w+): invalid (int|float) value: '(.*)'", message, re.DOTALL):
            raise wrong_type_error(*match.groups())
        raise UserError(message)


def parse_path(text: str) -> Path:
    """The argparse type of a path: `stores.expand_path`, with errors in the form that argparse shows."""
    try:
        return expand_path(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def make_parser() -> Parser:
    parser = Parser(prog="run_all.sh", description=__doc__, allow_abbrev=False)
    parser.add_argument("--tables", help="numbers, as 2,5 (default: all; none where --figures is given)")
    parser.add_argument("--figures", help="numbers, as 3,4 (default: all; none where --tables is given)")
    parser.add_argument("--datasets", help=f"some of {','.join(DATASETS)} (default: all)")
    parser.add_argument("--seeds", default="1", help="repeat every run with these (default: 1)")
    parser.add_argument("--preset", default="fast", choices=PRESETS, help="settings of BERT4Rec (default: fast)")
    parser.add_argument("--budget", type=float, default=1.0, help="share of the presets' steps, as 0.25 (default: 1)")
    parser.add_argument("--quick", action="store_true", help="everything on the built-in data with tiny models")
    parser.add_argument("--list", action="store_true", help="show what is done, running and missing, and run nothing")
    parser.add_argument(
        "--merge",
        metavar="FILE",
        type=parse_path,
        help="take in the finished runs of a results.jsonl from another machine, and write the report",
    )
    parser.add_argument("--report", action="store_true", help="write the report from what is there, and run nothing")
    parser.add_argument(
        "--tune", metavar="MODELS", help="search the paper's grid for these models, in place of a sweep"
    )
    parser.add_argument("--trials", type=int, default=30, help="settings that --tune tries (default: 30)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once (default: 1)")
    parser.add_argument("--threads", type=int, help="threads of each run (default: all)")
    parser.add_argument("--time_budget", type=float, help="minutes after which a run stops; the next sweep resumes it")
    parser.add_argument("--data_dir", type=parse_path, help="folder of the data files, as for a run")
    parser.add_argument(
        "--workdir", type=parse_path, help="folder of the runs (default: runs/experiments; --quick: runs/quick)"
    )
    parser.add_argument(
        "--results",
        type=parse_path,
        help="folder of results and report (default: experiments/results of the repository; --quick: the workdir)",
    )
    return parser


def parse_names(kind: str, text: str, known_names: Collection[str]) -> list[str]:
    """Returns the names in a text with commas. Raises UserError for an unknown one, which is called `kind`."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known_names:
            raise unknown_name_error(kind, name, known_names)
    return names


def find_tables(tables: str | None, figures: str | None) -> list[str]:
    """Returns the names in TABLES that the flags give the numbers of; all without flags."""
    if tables is None and figures is None:
        return list(TABLES)
    return [
        f"{kind}{number}"
        for kind, text in (("table", tables), ("figure", figures))
        if text is not None
        for number in parse_names(kind, text, [name.removeprefix(kind) for name in TABLES if name.startswith(kind)])
    ]


def parse_datasets(text: str | None, quick: bool) -> Sequence[str]:
    if text is None:
        return QUICK_DATASETS if quick else DATASETS
    if quick:
        raise UserError(f"`datasets` goes without --quick, which has the built-in one. Received: datasets={text}")
    return parse_names("dataset", text, DATASETS)


def parse_seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise UserError(f"`seeds` must be whole numbers. Received: seeds={text}") from None


def check(options: argparse.Namespace) -> None:
    for name in ("jobs", "threads", "trials"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"`{name}` must be at least 1. Received: {name}={value}")
    if options.time_budget is not None and not options.time_budget > 0:
        raise UserError(f"`time_budget` must be above 0 minutes. Received: time_budget={options.time_budget}")
    if not 0 < options.budget <= 1:
        raise UserError(f"`budget` must be above 0 and at most 1. Received: budget={options.budget}")
    if options.list and (options.merge or options.report):
        raise UserError("--list goes without --merge and --report")
    if options.results is not None and options.results.is_file():
        raise UserError(f"`results` must be a folder. Received: results={options.results}")
    if options.tune is not None:
        defaults = make_parser()
        for name in NOT_TUNED:
            if getattr(options, name) != defaults.get_default(name):
                raise UserError(f"--{name} and --tune exclude each other")
        if len(parse_seeds(options.seeds)) > 1:
            raise UserError(f"`seeds` must be one number for --tune. Received: seeds={options.seeds}")
        if options.datasets is None and not options.quick:
            raise UserError(f"--tune goes with --datasets, or --quick. Known: {', '.join(DATASETS)}")


def main(arguments: Sequence[str]) -> int:
    """Does what the command line says.

    Returns the exit code: 1 if a run failed, data could not be downloaded, or a result was refused.
    """
    options = make_parser().parse_args(arguments)
    check(options)
    names_of_data = parse_datasets(options.datasets, options.quick)
    plan = Plan(names_of_data, options.preset, parse_seeds(options.seeds), options.budget, options.quick)
    workdir = options.workdir or HERE.parent / "runs" / ("quick" if options.quick else "experiments")
    if options.tune is not None:
        import_tensorflow()
        from experiments import tune

        models = parse_names("model to tune", options.tune, tune.SPACES)
        return tune.main(models, plan, workdir / "tuning", options.trials, options.data_dir, options.threads)
    names = find_tables(options.tables, options.figures)
    refuse_absent_data(names, plan)
    results = Results(options.results or (workdir if options.quick else HERE / "results"))
    seconds = 60 * options.time_budget if options.time_budget else None
    sweep = Sweep(results, workdir, options.data_dir, options.jobs, seconds, options.threads)
    jobs = plan.make_all_jobs(names)
    if options.list:
        show(jobs, sweep)
        return 0
    from experiments import report

    statuses, has_data, merge_report = {}, True, None
    if options.merge:
        merge_report = merging.merge(options.merge, results, sweep.find_data_file)
        print("\n".join(merging.describe(merge_report)), flush=True)
    elif not options.report:
        start_server()
        statuses = sweep.run(jobs)
        has_data = "table1" not in names or fetch(plan.datasets, sweep)
    full_plan = dataclasses.replace(plan, datasets=QUICK_DATASETS if options.quick else DATASETS)
    lines, attentions = results.read(), results.list_attentions()
    findings = {name: Findings(name, full_plan, lines, attentions) for name in TABLES}
    for path in report.write(findings, sweep):
        print(path)
    return int(FAILED in statuses.values() or not has_data or bool(merge_report and merge_report.refusals))


def refuse_absent_data(names: Sequence[str], plan: Plan) -> None:
    """Raises UserError if none of the tables has any of the plan's data sets."""
    known_data = {data for name in names for data in TABLES[name].datasets}
    if not plan.quick and not known_data & set(plan.datasets):
        titles = " or ".join(datasets.find_dataset(data).title for data in plan.datasets)
        parts = " and no ".join(f"{make_label(name)} of {titles}" for name in names)
        choices = ", ".join(sorted(known_data, key=DATASETS.index))
        raise UserError(
            f"`datasets` must have one of {choices}, for there is no {parts}. "
            f"Received: datasets={','.join(plan.datasets)}"
        )


def fetch(names: Sequence[str], sweep: Sweep) -> bool:
    """Downloads missing data sets, and warns if one fails. Returns whether all are there."""
    are_there = True
    for name in names:
        try:
            datasets.find_or_download(name, sweep.data_dir)
        except UserError as error:
            warn(str(error), FileWarning)
            are_there = False
    return are_there


def command(arguments: Sequence[str]) -> None:
    """Runs `main` and exits with its code. A UserError prints one line; SIGTERM acts like Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    exit_on_error(lambda: sys.exit(main(arguments)))


if __name__ == "__main__":
    command(sys.argv[1:])
