"""Writes training examples to TFRecord shards and reads them back.

A record is a `tf.train.Example` with ROWS_PER_RECORD rows: a feature `name` with the values of all rows and, if rows
differ in length, a feature `name_lengths`. One record per row would take ten times as long.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert4rec_tf.foundation import files
from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.graphs import no_autograph
from bert4rec_tf.foundation.warning import FileWarning, warn

MANIFEST = "manifest.json"
LENGTHS_SUFFIX = "_lengths"
SHARD_FORMAT = 2
ROWS_PER_RECORD = 256
"""Another number changes the bytes of the shards."""


def write_shard(path: Path, columns: Mapping[str, np.ndarray], lengths: Mapping[str, np.ndarray]) -> None:
    """Writes one `tf.train.Example` per block of rows, atomically. Raises UserError if that fails.

    Args:
        path: where to write the shard.
        columns: feature -> int [rows] or, right-padded, int [rows, width].
        lengths: feature of the latter kind -> int [rows], how many values each row has without the padding.
    """
    num_rows = len(next(iter(columns.values())))
    try:
        with files.atomic_write(path) as temp_path, tf.io.TFRecordWriter(str(temp_path)) as writer:
            for start in range(0, num_rows, ROWS_PER_RECORD):
                block, features = slice(start, start + ROWS_PER_RECORD), {}
                for name, column in columns.items():
                    values = column[block]
                    if name in lengths:
                        features[f"{name}{LENGTHS_SUFFIX}"] = _make_feature(lengths[name][block])
                        values = values[np.arange(values.shape[1]) < lengths[name][block, None]]
                    features[name] = _make_feature(values)
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString(deterministic=True))
    except tf.errors.OpError as error:
        raise UserError(f"{path}: cannot be written ({error.message})") from error


def _make_feature(values: np.ndarray) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values.tolist()))


@dataclass(frozen=True)
class Shards:
    """Shards in a folder, and how many examples each has.

    `widths`: feature -> the width to which its rows are padded; None for one value per row.
    """

    folder: Path
    sizes: tuple[int, ...]
    widths: Mapping[str, int | None]

    @property
    def names(self) -> tuple[str, ...]:
        count = len(self.sizes)
        return tuple(f"train-{number:05d}-of-{count:05d}.tfrecord" for number in range(count))

    def write_manifest(self, fingerprint: str) -> None:
        """Writes the manifest. A folder that has it is complete."""
        manifest = self._make_manifest(fingerprint)
        for row in manifest["shards"]:
            row["sha256"] = files.compute_checksum(self.folder / row["name"])
        files.write_json(self.folder / MANIFEST, manifest)

    def find_missing(self, fingerprint: str) -> list[int]:
        """Returns the numbers of the shards to write.

        Without a manifest of this fingerprint, these are all shards. Otherwise those with another checksum, each with a
        warning.
        """
        all_shards = list(range(len(self.names)))
        try:
            manifest = files.read_json(self.folder / MANIFEST)
            checksums = [row.pop("sha256") for row in manifest["shards"]]
        except (UserError, KeyError, TypeError, AttributeError):
            return all_shards
        if manifest != self._make_manifest(fingerprint):
            return all_shards
        damaged_shards = [number for number in all_shards if self._is_damaged(number, checksums[number])]
        for number in damaged_shards:
            warn(f"{self.folder / self.names[number]}: damaged; written again", FileWarning)
        return damaged_shards

    def _is_damaged(self, number: int, checksum: str) -> bool:
        try:
            return files.compute_checksum(self.folder / self.names[number]) != checksum
        except OSError:
            return True

    def _make_manifest(self, fingerprint: str) -> dict[str, Any]:
        return {
            "format": SHARD_FORMAT,
            "fingerprint": fingerprint,
            "widths": dict(self.widths),
            "shards": [{"name": name, "examples": size} for name, size in zip(self.names, self.sizes)],
        }

    def read(self, names: Sequence[str]) -> Iterator[dict[str, tuple[np.ndarray, np.ndarray]]]:
        """Yields each shard's columns: int64 values of all rows, one after the other, and how many each row has."""
        spec = {
            name: tf.io.RaggedFeature(
                tf.int64,
                name,
                () if self.widths[name] is None else (tf.io.RaggedFeature.RowLengths(f"{name}{LENGTHS_SUFFIX}"),),
            )
            for name in names
        }

        @no_autograph
        def parse(records: tf.Tensor) -> dict[str, tf.Tensor]:
            return {name: column.values for name, column in tf.io.parse_example(records, spec).items()}

        for shard, size in zip(self.names, self.sizes):
            blocks = -(-size // ROWS_PER_RECORD)
            dataset = tf.data.TFRecordDataset(str(self.folder / shard))
            (columns,) = dataset.apply(tf.data.experimental.assert_cardinality(blocks)).batch(blocks).map(parse)
            yield {name: _split_rows(column) for name, column in columns.items()}


def _split_rows(column: tf.Tensor | tf.RaggedTensor) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(column, tf.RaggedTensor):
        return column.values.numpy(), column.row_lengths().numpy()
    return column.numpy(), np.ones(len(column), np.int64)
