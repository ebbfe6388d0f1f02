"""What a result's last bits depend on besides the run: versions, threads and devices."""

import importlib
import os
from typing import Any

import tensorflow as tf

import bert4rec_tf
from bert4rec_tf.foundation import devices
from bert4rec_tf.foundation.errors import UserError

PACKAGES = ("tensorflow", "keras", "numpy")


def list_versions() -> dict[str, str]:
    """Returns package -> version, from the module itself, because TensorFlow is installed under several names."""
    versions = {name: importlib.import_module(name).__version__ for name in PACKAGES}
    return {"bert4rec_tf": bert4rec_tf.__version__, **versions}


def describe_environment() -> dict[str, Any]:
    """Returns the `list_versions`, the number of `threads` and the kinds of `devices`.

    With a GPU also the names of the `accelerators`, and whether `float32_products` are exact.
    """
    num_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus: dict[str, Any] = {}
    if devices.has_accelerator():
        products = "exact" if devices.has_exact_products() else "TensorFloat-32"
        gpus = {"accelerators": devices.describe_accelerators(), "float32_products": products}
    return {
        "versions": list_versions(),
        "threads": tf.config.threading.get_intra_op_parallelism_threads() or num_cpus,
        "devices": sorted({device.device_type for device in tf.config.list_physical_devices()}),
        **gpus,
    }


def set_threads(threads: int) -> None:
    """Sets the number of TensorFlow's threads. Raises UserError if TensorFlow has already started to compute."""
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError as error:
        raise UserError("`threads` must be set before TensorFlow computes anything") from error
