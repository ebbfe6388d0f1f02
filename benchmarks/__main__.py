"""Times the hot paths and prints a table.

    python -m benchmarks                    all lines, some minutes
    python -m benchmarks --only training    one line
    python -m benchmarks --serving          latency in process and over HTTP, up to a saturated server
    python -m benchmarks --peers --implicit=PYTHON --rectools=PYTHON --recbole=PYTHON --output=DIR
                                            quality and cost beside other packages' models, trained by interpreters
                                            that have them; DIR keeps the results of earlier calls
    python -m benchmarks --catalogues       exports of 10^5 and 10^6 items: size, load, memory, latency
    python -m benchmarks --catalogues --largest     and of 10^7, which takes up to 14 GB
    python -m benchmarks --accelerator      training steps on a GPU, at most four minutes
    python -m benchmarks --output DIR       also write lines.json (or serving.json, catalogues.json,
                                            accelerator.json)

Both sides of a ratio are timed in the same run, so other work on the machine slows both.
"""

import argparse
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.lines import Row

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def main() -> None:
    from benchmarks import lines, measuring, peers
    from bert4rec_tf.foundation import files
    from bert4rec_tf.foundation.environment import describe_environment
    from bert4rec_tf.foundation.startup import exit_on_error

    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", choices=sorted(lines.LINES), action="append", help="run only this line; may be repeated"
    )
    parser.add_argument("--serving", action="store_true", help="measure a served model instead of the table")
    parser.add_argument("--peers", action="store_true", help="measure models of other packages instead of the table")
    parser.add_argument("--implicit", metavar="PYTHON", help="an interpreter that has implicit, for --peers")
    parser.add_argument("--rectools", metavar="PYTHON", help="the same for RecTools")
    parser.add_argument("--recbole", metavar="PYTHON", help="the same for RecBole")
    parser.add_argument("--model", choices=peers.MODELS, action="append", help="with --peers: only this; repeatable")
    parser.add_argument("--data", choices=peers.DATA, action="append", help="the same for a data set")
    parser.add_argument(
        "--peer_minutes", type=float, default=20, help="processor time after which another package's training stops"
    )
    parser.add_argument("--catalogues", action="store_true", help="measure exports of large catalogues instead")
    parser.add_argument("--largest", action="store_true", help="with --catalogues: also 10,000,000 items")
    parser.add_argument("--accelerator", action="store_true", help="measure training steps on a GPU instead")
    parser.add_argument("--seconds", type=float, default=200, help="with --accelerator: begin no case after so many")
    parser.add_argument("--output", type=Path, help="folder for the results as JSON")
    options = parser.parse_args()
    if options.peers:
        interpreters = {"implicit": options.implicit, "rectools": options.rectools, "recbole": options.recbole}
        if not options.output:
            parser.error("--peers needs --output")
        models, data = options.model or peers.MODELS, options.data or peers.DATA
        peers.measure(interpreters, models, data, options.peer_minutes, options.output)
        return
    if options.accelerator:
        exit_on_error(lambda: measure_accelerator(options.seconds, options.output))
        return
    rates = {"float32": measuring.matrix_rate(), "bfloat16": measuring.matrix_rate("bfloat16")}
    copy = measuring.copy_rate()
    print(f"matrix product {rates['float32'] / 1e9:.0f} GFLOP/s in float32, {rates['bfloat16'] / 1e9:.0f} in bfloat16;")
    print(f"copy {copy / 1e9:.1f} GB/s; {describe_environment()}\n", flush=True)
    content: dict[str, Any] = {"machine": {"product": rates, "copy": copy, **describe_environment()}}
    kinds = ("serving", "catalogues")
    kind = next((name for name in kinds if getattr(options, name)), "lines")
    if options.catalogues:
        from benchmarks import catalogues

        content["catalogues"] = catalogues.measure(options.largest)
    elif options.serving:
        from benchmarks import serving

        content["serving"] = serving.measure()
    else:
        names = (name for name in lines.LINES if not options.only or name in options.only)
        content["lines"] = show(row for name in names for row in lines.LINES[name]())
    if options.output:
        files.make_folder(options.output)
        files.write_json(options.output / f"{kind}.json", content)


def measure_accelerator(seconds: float, output: Path | None) -> None:
    """Measures training steps on a GPU, and writes accelerator.json into a folder."""
    from benchmarks import accelerator
    from bert4rec_tf.foundation import files
    from bert4rec_tf.foundation.environment import describe_environment

    content = {"machine": describe_environment(), **accelerator.measure(seconds)}
    if output:
        files.make_folder(output)
        files.write_json(output / "accelerator.json", content)


def show(rows: Iterable["Row"]) -> list[dict]:
    print(f"{'line':<36}{'unit':<12}{'ours':>14}{'original':>14}{'ratio':>9}")
    cells = []
    for row in rows:
        theirs, ratio = ("", "") if row.theirs is None else (f"{row.theirs:,.0f}", f"{row.ratio:,.1f}")
        notes = "  ".join(f"{key} {value:.3g}" for key, value in row.notes.items())
        print(f"{row.line:<36}{row.unit:<12}{row.ours:>14,.0f}{theirs:>14}{ratio:>9}  {notes}", flush=True)
        cells.append({**asdict(row), "ratio": row.ratio})
    return cells


if __name__ == "__main__":
    main()
