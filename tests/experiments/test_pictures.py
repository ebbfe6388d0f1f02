"""What the report takes from files: Table 1, pictures, and the results of parts."""

import numpy as np
import pytest
from support.invented_results import line_of, rows_of

from bert4rec_tf.foundation import files
from experiments import figures, report
from experiments.findings import Findings
from experiments.plan import Plan
from experiments.results import Results
from experiments.sweep import Sweep


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
        assert ["- difference", "-40,224", "-54,539", "-0.35m", "-6.3", "+83.31%"] in rows
        assert ["ML-20m", *["not run"] * 5] in rows


def test_the_pictures_are_drawn_from_what_is_there(tmp_path, monkeypatch):
    """Figure 2 is of the run whose attention is kept, with a quarter of the steps."""
    pytest.importorskip("matplotlib", reason="the extra [plots] is not installed")
    maps = np.full((2, 2, 10, 10), 0.1).tolist()
    sweep = Sweep(Results(tmp_path), tmp_path / "work", data_dir=tmp_path)
    names, plan = ("figure2", "figure3", "figure4"), Plan(("beauty",))
    variants = [("figure2", "default"), ("figure3", "sasrec@16"), ("figure3", "sasrec@32"), ("figure4", "0.1")]
    (attended,) = Plan(("beauty",), budget=0.25).make_jobs("figure2")["beauty", "default"]
    jobs = [attended, *(plan.make_jobs(name)["beauty", variant][0] for name, variant in variants)]
    for job, value in zip(jobs, (0.5, 0.5, 0.1, 0.2, 0.3)):
        sweep.results.put(line_of(job, value))
    kept = {"key": attended.key, "users": 7, "attention": maps}
    files.write_json(sweep.results.attention_path(attended.key), kept)
    known = sweep.results.read(), sweep.results.list_attentions()
    found = {name: Findings(name, plan, *known) for name in names}
    report.write(found, sweep)
    text = (tmp_path / "report.md").read_text()
    for name in ("figure2-beauty.png", "figure3.png", "figure4.png"):
        assert f"]({name})" in text and (tmp_path / name).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert "Beauty 25 %" in text.partition("## Figure 3")[0].partition("## Figure 2")[2] and "No picture" not in text
    saved = []
    with monkeypatch.context() as patch:
        patch.setattr(figures, "_save", lambda figure, *_: saved.append(figure))
        figures.draw_widths(found["figure3"], sweep.results)
    shown = {line.get_label(): (*line.get_xdata(), *line.get_ydata()) for line in saved[0].axes[0].lines}
    assert shown == {"SASRec": (0, 1, 0.1, 0.2), "BERT4Rec": (2, 0.5)}, "the others were not run"
    assert [text.get_text() for text in saved[0].axes[0].get_xticklabels()] == ["16", "32", "64", "128", "256"]
    before = (tmp_path / "figure4.png").read_bytes()
    figures.draw_proportions(found["figure4"], sweep.results)
    assert (tmp_path / "figure4.png").read_bytes() == before, "the same results give the same bytes"
