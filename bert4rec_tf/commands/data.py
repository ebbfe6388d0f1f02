"""Prints statistics of a data set or of your own data.

bert4rec data --dataset=beauty
bert4rec data --interactions=ratings.csv
"""

from dataclasses import dataclass

from bert4rec_tf.commands.flags import parse_with_columns
from bert4rec_tf.config.data_names import SOURCES, Interactions, add_source, list_column_options
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
    options, columns = parse_with_columns(__doc__ or "", arguments, DataOptions, list_column_options())
    data: Interactions | str
    if options.interactions is not None and options.dataset is None:
        if options.source is not None:
            raise UserError("--source cannot be used with --interactions")
        data = Interactions(options.interactions, **columns)
        name = data.name
    elif options.dataset is not None and options.interactions is None:
        if columns:
            raise UserError(f"--{next(iter(columns))} needs --interactions=FILE")
        data = name = add_source(options.dataset, options.source or SOURCES[0])
    else:
        raise UserError("Give either --dataset or --interactions")
    sequences, report = datasets.load_with_report(data, options.data_dir)
    print(datasets.describe_data(name, sequences, report))
    print("\n" + statistics.format_table(statistics.compute_statistics(sequences)))
