"""What the report takes from files: Table 1, pictures, and the results of parts."""

import numpy as np
import pytest
from support.invented_results import findings, line_of, rows_of

from bert4rec_tf.data.sources import datasets
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from experiments import __main__ as program
from experiments import figures, report
from experiments.findings import Findings
from experiments.plan import Plan
from experiments.results import Results
from experiments.sweep import Sweep
from experiments.tables import TABLES


def test_table_1_is_kept_for_when_the_data_are_gone(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "beauty.txt").write_text("1 2\n1 3\n1 4\n2 2\n2 3\n")
    for folder in (data, tmp_path / "empty"):
        sweep = Sweep(Results(tmp_path / "results"), tmp_path / "work", data_dir=folder)
        report.write({"table1": Findings("table1", Plan(("beauty", "ml-20m")), {})}, sweep)
        rows = rows_of((tmp_path / "results" / "report.md").read_text())
        assert ["Beauty", "2", "3", "5", "2.50", "83.33%"] in rows
        assert ["- paper", "40,226", "54,542", "0.35m", "8.8", "0.02%"] in rows
        assert ["ML-20m", *["not run"] * 5] in rows


def written(folder, *flags):
    """What the command makes of the results in a folder, without running anything."""
    code = program.main(
        ["--report", f"--results={folder}", f"--workdir={folder / 'work'}", f"--data_dir={folder}", *flags]
    )
    assert code == 0
    return (folder / "report.md").read_text()


def test_a_part_does_not_take_the_place_of_the_whole_report(tmp_path):
    """Whatever is asked for, the report has everything that is known; what it says of the runs asked for, differs."""
    for dataset, table, variant in (
        ("ml-1m", "table2", "ncf"),
        ("beauty", "table5", "default"),
        ("steam", "table2", "pop"),
    ):
        Results(tmp_path).put(line_of(Plan((dataset,)).jobs(table)[dataset, variant][0], data_file=None))
    kept = {"data_file": None, "columns": dict.fromkeys(("users", "items", "actions", "mean length", "density"), "7")}
    files.write_json(tmp_path / "statistics.json", {"ml-20m": kept})
    whole, part = written(tmp_path), written(tmp_path, "--tables=2,3", "--datasets=steam")
    assert "Runs asked for: 9 (finished: 1, failed: 0, stopped: 0, missing: 8)." in part
    assert "The paper has no Table 3 of Steam." in part and "The paper has no" not in whole
    parts = [text.split("\n## ") for text in (whole, part)]
    assert parts[0].pop(2) != parts[1].pop(2), "the section about these results"
    assert parts[0] == parts[1]
    titles = [line for line in part.splitlines() if line.startswith("## ")]
    assert len(titles) == 3 + len(TABLES) and ["ML-20m", *["7"] * 5] in rows_of(part)
    of_section = {text.split(":")[0]: text.splitlines() for text in part.split("\n## ")}
    assert "ML-20m: not run." in of_section["Table 2"] and "Steam, ML-1m, ML-20m: not run." in of_section["Figure 3"]
    assert "Beauty, ML-1m: not run." in of_section["Table 3"], "in place of a grid that says nothing else"


def test_table_1_has_its_data_fetched(tmp_path, monkeypatch, capsys):
    """What cannot be had is told, and the other data sets go on. A report alone fetches nothing."""

    present = datasets.find_or_download

    def obtain(name, folder):
        if name == "beauty":
            raise UserError("beauty.txt: cannot be had")
        files.write_text(folder / "steam.txt", "1 2\n1 3\n1 4\n2 2\n2 3\n")
        return present(name, folder)

    monkeypatch.setattr(datasets, "find_or_download", obtain)
    flags = ["--tables=1", "--datasets=beauty,steam", f"--results={tmp_path}", f"--data_dir={tmp_path}"]
    assert program.main([*flags, "--report", f"--workdir={tmp_path}"]) == 0
    assert not (tmp_path / "steam.txt").exists()
    assert program.main([*flags, f"--workdir={tmp_path}"]) == 1
    assert "beauty.txt: cannot be had" in capsys.readouterr().err
    rows = rows_of((tmp_path / "report.md").read_text())
    assert ["Steam", "2", "3", "5", "2.50", "83.33%"] in rows and ["Beauty", *["not run"] * 5] in rows


def is_png(path):
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_pictures_are_drawn_from_what_is_there(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra [plots] is not installed")
    maps = np.full((2, 2, 10, 10), 0.1).tolist()
    sweep = Sweep(Results(tmp_path), tmp_path / "work", data_dir=tmp_path)
    names = ("figure2", "figure3", "figure4")
    plan = Plan(("beauty",))
    variants = [("figure2", "default"), ("figure3", "sasrec@16"), ("figure3", "sasrec@32"), ("figure4", "0.1")]
    jobs = [plan.jobs(name)["beauty", variant][0] for name, variant in variants]
    for job in jobs:
        sweep.results.put(line_of(job))
    files.write_json(tmp_path / f"attention-{jobs[0].key}.json", {"key": jobs[0].key, "users": 7, "attention": maps})
    known = sweep.results.read(), sweep.results.attentions()
    found = {name: Findings(name, plan, *known) for name in names}
    report.write(found, sweep)
    text = (tmp_path / "report.md").read_text()
    for name in ("figure2-beauty.png", "figure3.png", "figure4.png"):
        assert f"]({name})" in text and is_png(tmp_path / name)
    before = (tmp_path / "figure4.png").read_bytes()
    figures.draw_proportions(found["figure4"], tmp_path)
    assert (tmp_path / "figure4.png").read_bytes() == before, "the same results give the same bytes"


def with_both_budgets(folder):
    """BERT4Rec on Beauty in full without its attention, for Table 2, and with a quarter of the steps, for Figure 2."""
    sweep = Sweep(Results(folder), folder / "work", data_dir=folder)
    for budget, kept in ((1.0, False), (0.25, True)):
        (job,) = Plan(("beauty",), budget=budget).jobs("figure2")["beauty", "default"]
        sweep.results.put(line_of(job))
        if kept:
            maps = np.full((2, 2, 10, 10), 0.1).tolist()
            files.write_json(sweep.results.attention_path(job.key), {"key": job.key, "users": 7, "attention": maps})
    found = Findings("figure2", Plan(("beauty",)), sweep.results.read(), sweep.results.attentions())
    return found, sweep


def test_figure_2_is_of_a_run_whose_attention_is_kept(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra [plots] is not installed")
    found, sweep = with_both_budgets(tmp_path)
    report.write({"figure2": found}, sweep)
    text = (tmp_path / "report.md").read_text()
    assert "](figure2-beauty.png)" in text and "Beauty 25 %" in text and "No picture" not in text


def test_without_matplotlib_pictures_are_not_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(report.plots, "available", lambda: False)
    found, sweep = with_both_budgets(tmp_path)
    empty = Findings("figure3", Plan(("beauty",)), {})
    report.write({"figure2": found, "figure3": empty}, sweep)
    text = (tmp_path / "report.md").read_text()
    assert text.count("No picture: it needs the extra [plots].") == 1
    assert text.count("No picture: not run.") == 1


def test_a_single_point_is_no_picture(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra [plots] is not installed")
    sweep = Sweep(Results(tmp_path), tmp_path / "work", data_dir=tmp_path)
    report.write({"figure4": findings("figure4", {"0.6": 0.2})}, sweep)
    assert "No picture: no line has two points." in (tmp_path / "report.md").read_text()
    assert not (tmp_path / "figure4.png").exists()


def test_figure_4_marks_the_best_of_each_line(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="the extra [plots] is not installed")
    kept = []
    monkeypatch.setattr(figures, "_save", lambda figure, path: kept.append(figure))
    values = {"0.1": 0.1, "0.3": 0.3, "0.5": 0.2}
    figures.draw_proportions(findings("figure4", values), tmp_path)
    figures.draw_widths(findings("figure3", {"sasrec@16": 0.1, "sasrec@32": 0.2}), tmp_path)
    marked, plain = (figure.get_axes() for figure in kept)
    assert len(marked) == len(plain) == 2
    for axes in marked:
        line, best = axes.get_lines()
        assert list(line.get_xdata()) == [0.1, 0.3, 0.5]
        assert (list(best.get_xdata()), list(best.get_ydata())) == ([0.3], [0.3])
        assert best.get_markersize() > line.get_markersize() and best.get_color() == line.get_color()
    assert all(len(axes.get_lines()) == 1 for axes in plain), "as in the paper"
