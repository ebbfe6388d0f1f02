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
        assert ["ML-20m", *["not run"] * 5] in rows


def test_the_pictures_are_drawn_from_what_is_there(tmp_path):
    """Figure 2 is of the run whose attention is kept, with a quarter of the steps."""
    pytest.importorskip("matplotlib", reason="the extra [plots] is not installed")
    maps = np.full((2, 2, 10, 10), 0.1).tolist()
    sweep = Sweep(Results(tmp_path), tmp_path / "work", data_dir=tmp_path)
    names, plan = ("figure2", "figure3", "figure4"), Plan(("beauty",))
    variants = [("figure2", "default"), ("figure3", "sasrec@16"), ("figure3", "sasrec@32"), ("figure4", "0.1")]
    (attended,) = Plan(("beauty",), budget=0.25).make_jobs("figure2")["beauty", "default"]
    for job in [attended, *(plan.make_jobs(name)["beauty", variant][0] for name, variant in variants)]:
        sweep.results.put(line_of(job))
    kept = {"key": attended.key, "users": 7, "attention": maps}
    files.write_json(sweep.results.attention_path(attended.key), kept)
    known = sweep.results.read(), sweep.results.list_attentions()
    found = {name: Findings(name, plan, *known) for name in names}
    report.write(found, sweep)
    text = (tmp_path / "report.md").read_text()
    for name in ("figure2-beauty.png", "figure3.png", "figure4.png"):
        assert f"]({name})" in text and (tmp_path / name).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert "Beauty 25 %" in text.partition("## Figure 3")[0].partition("## Figure 2")[2] and "No picture" not in text
    before = (tmp_path / "figure4.png").read_bytes()
    figures.draw_proportions(found["figure4"], sweep.results)
    assert (tmp_path / "figure4.png").read_bytes() == before, "the same results give the same bytes"
