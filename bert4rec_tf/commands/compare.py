"""Compares two evaluated work directories user by user."""

from bert4rec_tf.foundation.startup import Parser, path_argument
from bert4rec_tf.runs import comparison, summary
from bert4rec_tf.runs.workdir import WorkDirectory


def main(arguments: list[str]) -> None:
    """Does what the command line says."""
    parser = Parser(prog="bert4rec compare", description=__doc__, allow_abbrev=False)
    parser.add_argument("first", type=path_argument, help="work directory of one run")
    parser.add_argument("second", type=path_argument, help="work directory of another run on the same data")
    named = parser.parse_args(arguments)
    found = comparison.compare(named.first, named.second)
    evaluation = WorkDirectory(named.first).read_config()["run"]["evaluation"]
    print(summary.comparison_table(found, evaluation["num_negatives"]))
