"""Compares two evaluated work directories user by user."""

from bert4rec_tf.evaluation.metrics import METRICS, name_metrics
from bert4rec_tf.foundation.startup import Parser, parse_path
from bert4rec_tf.runs import comparison, summary
from bert4rec_tf.runs.workdir import WorkDirectory


def main(arguments: list[str]) -> None:
    parser = Parser(prog="bert4rec compare", description=__doc__, allow_abbrev=False)
    parser.add_argument("first", type=parse_path, help="work directory of one run")
    parser.add_argument("second", type=parse_path, help="work directory of another run on the same data")
    parser.add_argument(
        "--k", type=_parse_cutoffs, metavar="K[,K]", help="cut-offs for HR, NDCG, MAP, precision and recall"
    )
    options = parser.parse_args(arguments)
    names = METRICS if options.k is None else name_metrics(options.k)
    differences = comparison.compare(options.first, options.second, names)
    evaluation = WorkDirectory(options.first).read_config()["run"]["evaluation"]
    print(summary.make_comparison_table(differences, evaluation["num_negatives"]))


def _parse_cutoffs(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]
