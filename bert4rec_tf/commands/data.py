"""Prints statistics of a data set or of your own data.

bert4rec data --dataset=beauty
bert4rec data --interactions=ratings.csv
"""

from dataclasses import dataclass

from bert4rec_tf.commands.flags import parse_with_interactions
from bert4rec_tf.config.data_names import SOURCES, add_source, list_column_options
from bert4rec_tf.config.setting_fields import Settings, setting
from bert4rec_tf.data import statistics
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.foundation.errors import UserError


@dataclass(frozen=True)
class DataOptions(Settings):
    """Every field is a flag of the same name."""

    dataset: str | None = setting(None, f"a data set: {', '.join(datasets.DATASETS)}")
    interactions: str | None = setting(None, "your own file, pattern or folder of Parquet files")
    source: str | None = setting(
        None, f"file of a data set, {' or '.join(SOURCES)}: the authors' (default) or the publisher's"
    )
    data_dir: str | None = setting(None, "folder of downloaded and converted data")


def main(arguments: list[str]) -> None:
    options, interactions = parse_with_interactions(__doc__ or "", arguments, DataOptions, list_column_options())
    if (options.dataset is None) == (interactions is None):
        raise UserError("Give either --dataset or --interactions")
    if interactions is not None and options.source is not None:
        raise UserError("--source cannot be used with --interactions")
    name = interactions.name if interactions else add_source(options.dataset or "", options.source or SOURCES[0])
    sequences, report = datasets.load_with_report(interactions or name, options.data_dir)
    print(datasets.describe_data(name, sequences, report))
    print("\n" + statistics.format_table(statistics.compute_statistics(sequences)))
