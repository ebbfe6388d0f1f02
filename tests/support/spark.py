"""A Spark on this machine: what it needs, and how it is started."""

import importlib.util
import os
import shutil

import pytest

SETTINGS = (
    *("spark.sql.shuffle.partitions=2", "spark.ui.enabled=false", "spark.ui.showConsoleProgress=false"),
    "spark.sql.adaptive.coalescePartitions.enabled=false",  # several files in little data
    *("spark.sql.codegen.wholeStage=false", "spark.sql.codegen.factoryMode=NO_CODEGEN"),  # compiling takes longest
)


def needed():
    """Skips a test where Spark cannot run."""
    for name, found in (("pyspark", importlib.util.find_spec("pyspark")), ("Java", shutil.which("java"))):
        if not found:
            pytest.skip(f"{name} is not installed")


def environment(folder):
    """What a driver is started with. `folder`: for Spark's own files."""
    options = (*SETTINGS, f"spark.local.dir={folder / 'spark'}", f"spark.sql.warehouse.dir={folder / 'warehouse'}")
    return {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(folder / "workers"),
        "PYSPARK_SUBMIT_ARGS": " ".join([*(f"--conf {option}" for option in options), "pyspark-shell"]),
    }
