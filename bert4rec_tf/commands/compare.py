"""Compares two evaluated work directories user by user, or shows the metrics of one."""

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


def parse_cutoffs(text: str) -> list[int]:
    """Returns the cut-offs in a text. Raises UserError for one that is no list of them."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise UserError(f"`k` must be whole numbers, separated by commas. Received: k={text}")
    return [int(part) for part in parts]


def main(arguments: list[str]) -> None:
    fields = list_fields(CompareOptions)
    title = f"bert4rec compare FIRST [SECOND]\n\n{__doc__}"
    flags = parse_command(title, arguments, fields, words=("first", "second"), num_required=1)
    first, *rest = (expand_path(flags[name]) for name in ("first", "second") if name in flags)
    metrics = METRICS if "k" not in flags else name_metrics(parse_cutoffs(flags["k"]))
    num_negatives = WorkDirectory(first).read_config().run.evaluation.num_negatives
    if not rest:
        print(summary.make_metrics_table(comparison.measure(first, metrics), num_negatives))
    else:
        print(summary.make_comparison_table(comparison.compare(first, rest[0], metrics), num_negatives))
