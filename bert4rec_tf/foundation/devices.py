"""The accelerator that TensorFlow computes on: whether there is one, how exact it is, and how much it holds."""

import functools
import os

import tensorflow as tf

from bert4rec_tf.foundation.errors import UserError

UNKNOWN_MEMORY = 8 << 30
"""Bytes that an accelerator is taken to have if TensorFlow does not say."""


@functools.cache
def has_accelerator() -> bool:
    """Returns whether TensorFlow computes on a GPU."""
    return bool(tf.config.list_physical_devices("GPU"))


@functools.cache
def read_memory() -> int:
    """Returns the bytes of the smallest accelerator's memory that TensorFlow may use. Starts the devices."""
    from tensorflow.python.client import device_lib  # TensorFlow's public names have no way to ask

    limits = [device.memory_limit for device in device_lib.list_local_devices() if device.device_type == "GPU"]
    return min((limit for limit in limits if limit > 0), default=UNKNOWN_MEMORY)


def describe_accelerators() -> list[str]:
    """Returns the names of the GPUs, such as "NVIDIA H100"."""
    details = [tf.config.experimental.get_device_details(gpu) for gpu in tf.config.list_physical_devices("GPU")]
    return [detail.get("device_name", "GPU") for detail in details]


def set_exact_products(exact: bool) -> None:
    """Sets whether products of float32 matrices are exact, or rounded to TensorFloat-32 where a GPU has it.

    TensorFloat-32 keeps 10 of 23 bits. With it, the results of a layer differ from the authors' by 4e-4.
    """
    tf.config.experimental.enable_tensor_float_32_execution(not exact)


def has_exact_products() -> bool:
    return not has_accelerator() or not tf.config.experimental.tensor_float_32_execution_enabled()


def make_deterministic() -> None:
    """Has every operation give the same bits each time, on a GPU too, which is slower. Call it before the first one."""
    os.environ["TF_DETERMINISTIC_OPS"] = "1"
    tf.config.experimental.enable_op_determinism()


def explain_exhausted(error: tf.errors.OpError, clause: str, remedy: str) -> UserError:
    """Returns the error that a user gets in place of a trace of TensorFlow's if the memory or a disk does not suffice.

    `clause`: subject and verb, such as "A training step does". `remedy`: what takes less memory.
    """
    memory = "the accelerator's memory" if has_accelerator() else "memory"
    lines = error.message.splitlines()
    if full := next((line for line in lines if "No space left" in line or "quota exceeded" in line), None):
        return UserError(f"A disk is full: {full}")
    return UserError(f"{clause} not fit into {memory}: {remedy} needs less ({lines[0]})")
