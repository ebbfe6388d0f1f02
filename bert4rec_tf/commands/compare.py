"""Compares two evaluated work directories user by user."""

from bert4rec_tf.commands.flags import parse_command
from bert4rec_tf.foundation.files import expand_path
from bert4rec_tf.runs import comparison, summary
from bert4rec_tf.runs.workdir import WorkDirectory


def main(arguments: list[str]) -> None:
    given = parse_command(f"bert4rec compare FIRST SECOND\n\n{__doc__}", arguments, {}, words=("first", "second"))
    first, second = (expand_path(given[name]) for name in ("first", "second"))
    differences = comparison.compare(first, second)
    num_negatives = WorkDirectory(first).read_config().run.evaluation.num_negatives
    print(summary.make_comparison_table(differences, num_negatives))
