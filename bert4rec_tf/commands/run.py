"""Prepares, trains, evaluates and exports a model (the same as python -m bert4rec_tf.run)."""

import runpy
import sys


def main(arguments: list[str]) -> None:
    sys.argv[1:] = arguments
    runpy.run_module("bert4rec_tf.run", run_name="__main__", alter_sys=True)
