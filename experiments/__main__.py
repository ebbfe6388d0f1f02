"""`python -m experiments`: runs what is missing of the paper's tables and figures, and writes the report."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from bert4rec_tf import plots
from bert4rec_tf.data import datasets
from bert4rec_tf.errors import UserError, unknown_name
from bert4rec_tf.progress import clock, warn
from experiments import significance
from experiments.findings import Findings, jobs_of
from experiments.report import Report
from experiments.results import FINISHED, Results
from experiments.sweep import Sweep, distinct, states
from experiments.tables import DATASETS, MODELS, QUICK_DATASETS, TABLES

HERE = Path(__file__).parent
TITLE = "BERT4Rec: every table and figure, beside the paper"


class Parser(argparse.ArgumentParser):
    """A mistake ends in one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def parser() -> Parser:
    made = Parser(prog="run_all.sh", description=__doc__)
    made.add_argument("--tables", help="numbers, as 2,5 (default: all; none where --figures is given)")
    made.add_argument("--figures", help="numbers, as 3,4 (default: all; none where --tables is given)")
    made.add_argument("--datasets", help=f"some of {','.join(DATASETS)} (default: all)")
    made.add_argument("--seeds", default="1", help="repeat every run with these (default: 1)")
    made.add_argument("--preset", default="fast", help="settings of BERT4Rec: fast, released or table2")
    made.add_argument("--quick", action="store_true", help="the whole path on the built-in data, tiny models")
    made.add_argument("--list", action="store_true", help="show what is done, running and missing, and run nothing")
    made.add_argument("--report", action="store_true", help="write the report from what is there, and run nothing")
    made.add_argument("--jobs", type=int, default=1, help="runs at once (default: 1)")
    made.add_argument("--threads", type=int, help="threads of each run (default: all)")
    made.add_argument("--time_budget", type=float, help="minutes after which a run is stopped; the next sweep goes on")
    made.add_argument("--data_dir", type=Path, help="folder of the data files, as for a run")
    made.add_argument("--workdir", type=Path, default=Path("runs/experiments"), help="folder of the runs")
    made.add_argument("--results", type=Path, help="folder of results and report (default: experiments/results)")
    return made


def numbered(kind: str, text: str | None, other: str | None) -> list[str]:
    """Returns the names in TABLES of `kind` ("table" or "figure") that were asked for."""
    known = [name for name in TABLES if name.startswith(kind)]
    if text is None:
        return known if other is None else []
    names = [f"{kind}{number.strip()}" for number in text.split(",")]
    for name in names:
        if name not in known:
            raise UserError(
                f"`{kind}s` must be numbers among {', '.join(one.removeprefix(kind) for one in known)}. "
                f"Received: {kind}s={text}"
            )
    return names


def chosen_datasets(text: str | None, quick: bool) -> tuple[str, ...]:
    if quick:
        return QUICK_DATASETS
    names = tuple(DATASETS if text is None else (name.strip() for name in text.split(",")))
    for name in names:
        if name not in DATASETS:
            raise unknown_name("dataset", name, DATASETS)
    return names


def chosen_seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise UserError(f"`seeds` must be whole numbers. Received: seeds={text}") from None


def check(asked: argparse.Namespace) -> None:
    if asked.jobs < 1:
        raise UserError(f"`jobs` must be at least 1. Received: jobs={asked.jobs}")
    if asked.time_budget is not None and asked.time_budget <= 0:
        raise UserError(f"`time_budget` must be above 0 minutes. Received: time_budget={asked.time_budget}")


def main(arguments: Sequence[str]) -> int:
    """Does what the command line says; returns the exit code: 1 where a run failed."""
    asked = parser().parse_args(arguments)
    check(asked)
    names = [
        *numbered("table", asked.tables, asked.figures),
        *numbered("figure", asked.figures, asked.tables),
    ]
    chosen, seeds = chosen_datasets(asked.datasets, asked.quick), chosen_seeds(asked.seeds)
    plan = {name: jobs_of(name, chosen, asked.preset, seeds, asked.quick) for name in names}
    jobs = distinct(job for table in plan.values() for cell in table.values() for job in cell)
    results = Results(asked.results or HERE / "results" if not asked.quick else asked.results or asked.workdir)
    budget = asked.time_budget * 60 if asked.time_budget else None
    sweep = Sweep(results, asked.workdir, asked.data_dir, asked.jobs, budget, asked.threads)
    if asked.list:
        show(sweep, jobs)
        return 0
    statuses = {} if asked.report else sweep.run(jobs)
    for path in write_report(plan, sweep):
        print(path)
    return int("failed" in statuses.values())


def show(sweep: Sweep, jobs: Sequence[Any]) -> None:
    """Prints what is in which state, and how long the rest may take."""
    total, unknown = 0.0, 0
    for job, state, seconds in states(jobs, sweep):
        told = "" if state == FINISHED else "unknown" if seconds is None else clock(seconds)
        print(f"{state:<9} {told:>9}  {job.title}")
        total, unknown = total + (seconds or 0.0), unknown + (seconds is None)
    print(f"About {clock(total / sweep.jobs)} left, and {unknown} runs of which it is not known.")


def write_report(plan: dict[str, dict], sweep: Sweep) -> list[Path]:
    """Makes what the report needs beside the results, and writes it."""
    results = sweep.results
    lines = results.read()
    findings = {name: Findings(name, jobs, lines) for name, jobs in plan.items()}
    if "table2" in plan:
        compare(plan["table2"], sweep)
    report = Report(findings, significance.read(results), statistics(plan, sweep), draw(findings, sweep))
    return report.write(results.folder, TITLE)


def compare(jobs: dict, sweep: Sweep) -> None:
    """Compares BERT4Rec with each other model of Table 2, by the first seed."""
    first = {cell: some[0] for cell, some in jobs.items()}
    pairs = [
        (first[dataset, model].key, first[dataset, "bert4rec"].key)
        for dataset, model in first
        if model != "bert4rec" and model in MODELS
    ]
    folders = {job.key: sweep.folder(job) for job in first.values()}
    significance.compare_all(pairs, folders, sweep.results)


def statistics(plan: dict[str, dict], sweep: Sweep) -> dict[str, dict[str, str]]:
    """Returns the rows of Table 1 of the data sets whose files are there."""
    found = {}
    for dataset in DATASETS if "table1" in plan else ():
        try:
            found[dataset] = datasets.table1_columns(datasets.load(dataset, sweep.data_dir))
        except UserError as error:
            warn(f"Table 1: {error}")
    return found


def draw(findings: dict[str, Findings], sweep: Sweep) -> dict[str, list[tuple[str, str]]]:
    """Draws the figures that were asked for and have anything to show."""
    if not plots.available():
        warn("The figures need matplotlib: pip install '.[plots]'")
        return {}
    from experiments import figures

    folder, drawn = sweep.results.folder, {}
    if "figure2" in findings:
        drawn["figure2"] = attention_of(findings["figure2"], sweep)
    for name, make in (("figure3", figures.draw_widths), ("figure4", figures.draw_proportions)):
        if name in findings and findings[name].datasets():
            drawn[name] = make(findings[name], folder)
    return drawn


def attention_of(found: Findings, sweep: Sweep) -> list[tuple[str, str]]:
    """Draws Figure 2 from the attention that is kept, or is measured now where its run is finished and at hand."""
    from bert4rec_tf import files
    from experiments import attention, figures

    drawn = []
    for (dataset, _), jobs in found.jobs.items():
        job = jobs[0]
        path = attention.path_of(sweep.results, job.key)
        if path.exists():
            content = files.read_json(path)
        elif sweep.is_finished(job) and sweep.folder(job).exists():
            content = attention.keep(sweep.results, job.key, sweep.folder(job), sweep.data_dir)
        else:
            continue
        drawn += figures.draw_attention(content["attention"], sweep.results.folder / f"figure2-{dataset}.png")
    return drawn


def end(message: str) -> NoReturn:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def interrupted(*_: Any) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupted)
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        end(str(error))
    except KeyboardInterrupt:
        print("\nStopped. The same command goes on.", file=sys.stderr)
        sys.exit(130)
