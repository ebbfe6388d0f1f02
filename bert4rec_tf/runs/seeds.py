"""The same run with several seeds: mean and standard deviation of its metrics."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec_tf.config.run import Run
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.evaluation.metrics import COUNTED, METRICS, PROTOCOLS
from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.runs import warm_start
from bert4rec_tf.runs.pipeline import execute

SUMMARY = "seeds.json"


def folder_of(run: Run, folder: Path | None = None) -> Path:
    """Returns the folder for all seeds of a run."""
    digest = dataclasses.replace(run, seed=0).digest
    return folder or Path("runs") / f"{run.dataset}-{run.model}-{digest}-seeds"


def repeat(run: Run, seeds: Sequence[int], workdir: Path | str | None = None, **options: Any) -> dict[str, Any]:
    """Executes a run once per seed, each in its own folder in `workdir`. Finished seeds are not run again.

    All seeds share the candidates. See `Run` for what a seed decides.

    Args:
        run: the settings; its own seed is ignored.
        seeds: at least two different numbers.
        workdir: None for `runs/<dataset>-<model>-<digest>-seeds`.
        **options: as for `pipeline.execute`.

    Returns:
        The content of `seeds.json`: `seeds`, `digests`, `run` (of the first seed), the baselines that do not depend on
        the seed, and `test`: protocol -> metric -> `mean`, `deviation` (sample standard deviation) and `values`.

    Raises:
        UserError: for fewer than two seeds or a repeated one, and as in `execute`.
    """
    if len(seeds) < 2 or len(set(seeds)) < len(seeds):
        raise UserError(f"`seeds` must be at least two different numbers. Received: seeds={list(seeds)}")
    if options.get("init_from") is not None:
        run, options["init_from"] = warm_start.begin(run, options["init_from"])
    runs = [dataclasses.replace(run, seed=seed) for seed in seeds]
    folder = folder_of(run, files.expanded_path(workdir) if workdir else None)
    _refuse_other_content(folder)
    if options.get("sequences") is None:
        options["sequences"] = datasets.load(options.get("interactions") or run.dataset, options.pop("data_dir", None))
    options["prepared_dir"] = options.get("prepared_dir") or folder / "prepared"
    results = [execute(one, workdir=folder / f"seed-{one.seed}", **options).metrics for one in runs]
    content = {
        "seeds": list(seeds),
        "digests": [one.digest for one in runs],
        "run": results[0]["run"],
        "test": {
            protocol: {name: _summary([metrics["test"][protocol][name] for metrics in results]) for name in METRICS}
            for protocol in PROTOCOLS
        },
        **{name: results[0][name] for name in (*COUNTED, "ceiling") if name in results[0]},
    }
    files.write_json(folder / SUMMARY, content)
    return content


def _refuse_other_content(folder: Path) -> None:
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name not in (SUMMARY, "prepared") and not path.name.startswith("seed-") and not files.is_leftover(path):
            raise UserError(f"{folder}: already holds other files ({path.name}); name another --workdir")


def _summary(values: list[float]) -> dict[str, Any]:
    return {"mean": float(np.mean(values)), "deviation": float(np.std(values, ddof=1)), "values": values}
