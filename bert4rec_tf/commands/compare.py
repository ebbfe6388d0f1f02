"""Compares two evaluated work directories user by user."""

from dataclasses import dataclass

from bert4rec_tf.commands import summary
from bert4rec_tf.commands.flags import list_fields, parse_command
from bert4rec_tf.config.setting_fields import Settings, setting
from bert4rec_tf.evaluation.metrics import METRICS, name_metrics
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.stores import expand_path
from bert4rec_tf.runs import comparison
from bert4rec_tf.runs.folder import WorkDirectory


@dataclass(frozen=True)
class CompareOptions(Settings):
    """The flags of `bert4rec compare`."""

    k: str | None = setting(None, "cut-offs for HR, NDCG, MAP, precision and recall, such as 5,20")

    def list_cutoffs(self) -> list[int] | None:
        """Returns the cut-offs; None for the usual ones. Raises UserError for a text that is no list of them."""
        if self.k is None:
            return None
        parts = self.k.split(",")
        if not all(part.strip().isdigit() for part in parts):
            raise UserError(f"`k` must be whole numbers, separated by commas. Received: k={self.k}")
        return [int(part) for part in parts]


def main(arguments: list[str]) -> None:
    fields = list_fields(CompareOptions)
    given = parse_command(f"bert4rec compare FIRST SECOND\n\n{__doc__}", arguments, fields, words=("first", "second"))
    first, second = (expand_path(given[name]) for name in ("first", "second"))
    cutoffs = CompareOptions(given.get("k")).list_cutoffs()
    differences = comparison.compare(first, second, METRICS if cutoffs is None else name_metrics(cutoffs))
    num_negatives = WorkDirectory(first).read_config().run.evaluation.num_negatives
    print(summary.make_comparison_table(differences, num_negatives))
