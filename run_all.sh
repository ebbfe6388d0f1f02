#!/usr/bin/env bash
# Makes every table and figure of the paper: runs what is missing and writes experiments/results/report.md and .html.
# Needs the extras [report] and, for pictures, [plots]. --quick uses the built-in data and tiny models;
# --list shows the state of all runs; --help shows all flags.
set -euo pipefail
home="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
PYTHONPATH="$home${PYTHONPATH:+:$PYTHONPATH}" exec python -m experiments "$@"
