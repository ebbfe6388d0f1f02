#!/usr/bin/env bash
# Every table and figure of the paper: runs what is missing and writes experiments/results/report.md and .html.
# Needs the extras [report] and, for the pictures, [plots]. --quick does it on the built-in data with tiny models;
# --list shows what is done; --help shows all flags.
set -euo pipefail
home="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
PYTHONPATH="$home${PYTHONPATH:+:$PYTHONPATH}" exec python -m experiments "$@"
