"""Times the hot paths and prints a table.

    python -m benchmarks                    all lines, some minutes
    python -m benchmarks --only training    one of them
    python -m benchmarks --growth           how each figure grows with the catalogue, the length and the users
    python -m benchmarks --serving          a model asked in process and over HTTP, until the server is saturated
    python -m benchmarks --output DIR       also lines.json, growth.json or serving.json, and pictures of the curves

Ratios are of times in the same run; the machine's other work disturbs both sides of them.
"""

import argparse
import os
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def main() -> None:
    from benchmarks import growth, lines, measuring
    from bert4rec_tf.foundation import files
    from bert4rec_tf.runs.pipeline import environment

    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=sorted(lines.LINES), action="append", help="these lines only")
    parser.add_argument("--growth", action="store_true", help="the curves in place of the table")
    parser.add_argument(
        "--serving", action="store_true", help="latency and load of a served model in place of the table"
    )
    parser.add_argument("--output", type=Path, help="folder for the results as JSON, and pictures")
    named = parser.parse_args()
    rates = {"float32": measuring.matrix_rate(), "bfloat16": measuring.matrix_rate("bfloat16")}
    copy = measuring.copy_rate()
    print(f"matrix product {rates['float32'] / 1e9:.0f} GFLOP/s in float32, {rates['bfloat16'] / 1e9:.0f} in bfloat16;")
    print(f"copy {copy / 1e9:.1f} GB/s; {environment()}\n", flush=True)
    content = {"machine": {"product": rates, "copy": copy, **environment()}}
    kind = "serving" if named.serving else "growth" if named.growth else "lines"
    if named.serving:
        from benchmarks import serving

        content["serving"] = serving.measure()
    elif named.growth:
        content["growth"] = growth.measure()
        if named.output:
            growth.plot(content["growth"], named.output)
    else:
        content["lines"] = show(name for name in lines.LINES if not named.only or name in named.only)
    if named.output:
        files.make_folder(named.output)
        files.write_json(named.output / f"{kind}.json", content)


def show(names) -> list[dict]:
    from benchmarks import lines

    print(f"{'line':<36}{'unit':<12}{'ours':>14}{'original':>14}{'ratio':>9}")
    rows = []
    for name in names:
        for row in lines.LINES[name]():
            theirs, ratio = ("", "") if row.theirs is None else (f"{row.theirs:,.0f}", f"{row.ratio:,.1f}")
            notes = "  ".join(f"{key} {value:.3g}" for key, value in row.notes.items())
            print(f"{row.line:<36}{row.unit:<12}{row.ours:>14,.0f}{theirs:>14}{ratio:>9}  {notes}", flush=True)
            rows.append({**asdict(row), "ratio": row.ratio})
    return rows


if __name__ == "__main__":
    main()
