"""Prints the statistics of data (the same as python -m bert4rec_tf.data)."""

from bert4rec_tf.data import __main__ as statistics


def main(arguments: list[str]) -> None:
    """Does what the command line says."""
    statistics.main(arguments)
