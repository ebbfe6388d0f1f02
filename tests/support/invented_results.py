"""Results that nobody measured, and the report that is made of them, as text."""

from experiments.findings import Findings
from experiments.line_fields import FINISHED
from experiments.plan import Plan
from experiments.report import make_sections, render
from support.fake_runs import measured

FILE = {"name": "beauty.txt", "sha256": "f480" * 16, "as_published": True}


def line_of(job, value=0.5, seconds=120.0, **changes):
    content = {**measured(job.run, value), "key": job.key, "run": job.run.to_dict(), "budget": job.budget}
    return {
        **content,
        "status": FINISHED,
        "wall_seconds": seconds,
        "peak_memory": 2_000_000_000,
        "data_file": FILE,
        **changes,
    }


def findings(name, values, plan=None, others=()):
    """Findings of a table whose cells have these values of every metric: variant -> value, on the first data set."""
    plan = plan or Plan(("beauty",))
    jobs = plan.make_jobs(name)
    lines = [line_of(jobs[plan.datasets[0], variant][0], value) for variant, value in values.items()]
    return Findings(name, plan, {line["key"]: line for line in (*lines, *others)})


def text_of(name, found):
    sections = make_sections({name: found}, {}, {}, {})
    return render("md", sections), render("html", sections)


def rows_of(text):
    """The rows of all Markdown tables, by their first cell in order of appearance."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return [row for row in rows if not row[0].startswith("---")]


def rows_after(text, first):
    rows = rows_of(text)
    place = next(number for number, row in enumerate(rows) if row[0] == first)
    return [row[1:] for row in rows[place : place + 3]]
