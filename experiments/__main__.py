"""`python -m experiments`: does the missing runs of the paper's tables and figures, and writes the report."""

import argparse
import dataclasses
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from bert4rec_tf.data.sources import datasets
from bert4rec_tf.foundation.errors import UserError, unknown_name_error
from bert4rec_tf.foundation.progress import warn
from bert4rec_tf.foundation.startup import Parser, exit_on_error, parse_path
from experiments.findings import Findings
from experiments.plan import Plan
from experiments.processes import start_server
from experiments.results import FAILED, Results
from experiments.sweep import Sweep, show
from experiments.tables import DATASETS, QUICK_DATASETS, TABLES, label

HERE = Path(__file__).parent
NOT_TUNED = ("list", "report", "tables", "figures", "jobs", "time_budget", "results")
"""Flags that --tune refuses."""


def parser() -> Parser:
    made = Parser(prog="run_all.sh", description=__doc__, allow_abbrev=False)
    made.add_argument("--tables", help="numbers, as 2,5 (default: all; none where --figures is given)")
    made.add_argument("--figures", help="numbers, as 3,4 (default: all; none where --tables is given)")
    made.add_argument("--datasets", help=f"some of {','.join(DATASETS)} (default: all)")
    made.add_argument("--seeds", default="1", help="repeat every run with these (default: 1)")
    made.add_argument("--preset", default="fast", help="settings of BERT4Rec: fast, released or table2")
    made.add_argument("--budget", type=float, default=1.0, help="share of the presets' steps, as 0.25 (default: 1)")
    made.add_argument("--quick", action="store_true", help="everything on the built-in data with tiny models")
    made.add_argument("--list", action="store_true", help="show what is done, running and missing, and run nothing")
    made.add_argument("--report", action="store_true", help="write the report from what is there, and run nothing")
    made.add_argument("--tune", metavar="MODELS", help="search the paper's grid for these models, in place of a sweep")
    made.add_argument("--trials", type=int, default=30, help="settings that --tune tries (default: 30)")
    made.add_argument("--jobs", type=int, default=1, help="runs at once (default: 1)")
    made.add_argument("--threads", type=int, help="threads of each run (default: all)")
    made.add_argument("--time_budget", type=float, help="minutes after which a run stops; the next sweep resumes it")
    made.add_argument("--data_dir", type=parse_path, help="folder of the data files, as for a run")
    made.add_argument(
        "--workdir", type=parse_path, help="folder of the runs (default: runs/experiments; --quick: runs/quick)"
    )
    made.add_argument(
        "--results",
        type=parse_path,
        help="folder of results and report (default: experiments/results of the repository; --quick: the workdir)",
    )
    return made


def numbered(kind: str, text: str | None, other: str | None) -> list[str]:
    """Returns the names in TABLES of `kind` ("table" or "figure") that were asked for."""
    known = {name.removeprefix(kind): name for name in TABLES if name.startswith(kind)}
    if text is None:
        return list(known.values()) if other is None else []
    numbers = [number.strip() for number in text.split(",")]
    if not set(numbers) <= set(known):
        raise UserError(f"`{kind}s` must be numbers among {', '.join(known)}. Received: {kind}s={text}")
    return [known[number] for number in numbers]


def chosen_datasets(text: str | None, quick: bool) -> tuple[str, ...]:
    if text is None:
        return QUICK_DATASETS if quick else DATASETS
    if quick:
        raise UserError(f"`datasets` goes without --quick, which has the built-in one. Received: datasets={text}")
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in DATASETS:
            raise unknown_name_error("dataset", name, DATASETS)
    return names


def chosen_seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise UserError(f"`seeds` must be whole numbers. Received: seeds={text}") from None


def check(asked: argparse.Namespace) -> None:
    for name in ("jobs", "threads", "trials"):
        value = getattr(asked, name)
        if value is not None and value < 1:
            raise UserError(f"`{name}` must be at least 1. Received: {name}={value}")
    if asked.time_budget is not None and not asked.time_budget > 0:
        raise UserError(f"`time_budget` must be above 0 minutes. Received: time_budget={asked.time_budget}")
    if asked.preset == "best":
        raise UserError(
            "`preset` must be fast, released or table2; Table 2 has a column for best. Received: preset=best"
        )
    if not 0 < asked.budget <= 1:
        raise UserError(f"`budget` must be above 0 and at most 1. Received: budget={asked.budget}")
    if asked.tune is not None:
        defaults = parser()
        for name in NOT_TUNED:
            if getattr(asked, name) != defaults.get_default(name):
                raise UserError(f"--{name} and --tune exclude each other")
        if len(chosen_seeds(asked.seeds)) > 1:
            raise UserError(f"`seeds` must be one number for --tune. Received: seeds={asked.seeds}")
        if asked.datasets is None and not asked.quick:
            raise UserError(f"--tune goes with --datasets, or --quick. Known: {', '.join(DATASETS)}")


def main(arguments: Sequence[str]) -> int:
    """Does what the command line says. Returns the exit code: 1 if a run failed or data could not be downloaded."""
    asked = parser().parse_args(arguments)
    check(asked)
    chosen = chosen_datasets(asked.datasets, asked.quick)
    plan = Plan(chosen, asked.preset, chosen_seeds(asked.seeds), asked.budget, asked.quick)
    workdir = asked.workdir or HERE.parent / "runs" / ("quick" if asked.quick else "experiments")
    if asked.tune is not None:
        from experiments import tune

        return tune.main(asked.tune.split(","), plan, workdir / "tuning", asked.trials, asked.data_dir, asked.threads)
    names = [*numbered("table", asked.tables, asked.figures), *numbered("figure", asked.figures, asked.tables)]
    not_published = unknown_parts(names, plan)
    results = Results(asked.results or (workdir if asked.quick else HERE / "results"))
    seconds = 60 * asked.time_budget if asked.time_budget else None
    sweep = Sweep(results, workdir, asked.data_dir, asked.jobs, seconds, asked.threads)
    jobs = plan.all_jobs(names)
    if asked.list:
        show(jobs, sweep)
        return 0
    from experiments import report

    if not asked.report:
        start_server()
    statuses = {} if asked.report else sweep.run(jobs)
    has_data = asked.report or "table1" not in names or fetch(plan.datasets, sweep)
    whole = dataclasses.replace(plan, datasets=QUICK_DATASETS if asked.quick else DATASETS)
    lines, attentions = results.read(), results.attentions()
    findings = {name: Findings(name, whole, lines, attentions) for name in TABLES}
    for path in report.write(findings, sweep, [job.key for job in jobs], not_published):
        print(path)
    return int(FAILED in statuses.values() or not has_data)


def unknown_parts(names: Sequence[str], plan: Plan) -> list[str]:
    """Returns the tables that the paper does not have for any of the plan's data sets, as "Table 3 of Steam".

    Raises UserError if these are all the tables in `names`.
    """
    none = [name for name in names if not plan.quick and not set(plan.datasets) & set(TABLES[name].datasets)]
    titles = " or ".join(datasets.find_dataset(data).title for data in plan.datasets)
    parts = [f"{label(name)} of {titles}" for name in none]
    if len(none) == len(names):
        known = sorted({data for name in none for data in TABLES[name].datasets}, key=DATASETS.index)
        raise UserError(
            f"`datasets` must have one of {', '.join(known)}, for the paper has no {' and no '.join(parts)}. "
            f"Received: datasets={','.join(plan.datasets)}"
        )
    return parts


def fetch(names: Sequence[str], sweep: Sweep) -> bool:
    """Downloads missing data sets, and warns if one fails. Returns whether all are there."""
    are_there = True
    for name in names:
        try:
            if datasets.find_file(name, sweep.data_dir) is None:
                datasets.find_or_download(name, sweep.data_dir)
        except UserError as error:
            warn(str(error))
            are_there = False
    return are_there


def interrupted(*_: Any) -> NoReturn:
    raise KeyboardInterrupt


def command(arguments: Sequence[str]) -> None:
    """Runs `main` and exits with its code. A UserError prints one line; SIGTERM acts like Ctrl-C."""
    signal.signal(signal.SIGTERM, interrupted)
    exit_on_error(lambda: sys.exit(main(arguments)))


if __name__ == "__main__":
    command(sys.argv[1:])
