"""Prints the statistics of a data set or of your own data.

bert4rec data --dataset=beauty
bert4rec data --interactions=ratings.csv
"""

from bert4rec_tf.config.data_names import SOURCES, Interactions, add_source, list_column_options
from bert4rec_tf.config.setting_fields import add_flag, collect_given_flags
from bert4rec_tf.data import statistics
from bert4rec_tf.data.sources import datasets
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.startup import Parser, parse_path


def make_parser() -> Parser:
    parser = Parser(prog="bert4rec data", description=__doc__.splitlines()[0], allow_abbrev=False)
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument("--dataset", help=f"a data set: {', '.join(datasets.DATASETS)}")
    data.add_argument("--interactions", metavar="FILE", help="your own file, pattern or folder of Parquet files")
    parser.add_argument(
        "--source", choices=SOURCES, help="file of a data set: the authors' (default) or the publisher's"
    )
    parser.add_argument("--data_dir", type=parse_path, help="folder of downloaded and converted data")
    for field in list_column_options().values():
        add_flag(parser, field, default=None)
    return parser


def main(arguments: list[str]) -> None:
    namespace = make_parser().parse_args(arguments)
    options = collect_given_flags(namespace, list_column_options())
    data: Interactions | str
    if namespace.dataset is None:
        if namespace.source is not None:
            raise UserError("--source cannot be used with --interactions")
        data = Interactions(namespace.interactions, **options)
        name = data.name
    else:
        if options:
            raise UserError(f"--{next(iter(options))} needs --interactions=FILE")
        data = name = add_source(namespace.dataset, namespace.source or SOURCES[0])
    sequences, report = datasets.load_with_report(data, namespace.data_dir)
    print(datasets.describe_data(name, sequences, report))
    print("\n" + statistics.format_table(statistics.compute_statistics(sequences)))
