"""Where XLA keeps compiled programs, so that a second run on the same machine compiles nothing."""

import contextlib
import hashlib
import importlib.metadata
import os
import platform
from pathlib import Path

from bert4rec_tf.foundation.stores import find_cache_folder

MAX_PROGRAMS = 200
"""The newest programs are kept. Each has some megabytes."""

CACHE_FLAG, PARALLEL_FLAG = "--tf_xla_persistent_cache_directory", "--xla_gpu_force_compilation_parallelism"


def set_flags() -> None:
    """Sets XLA's flags: where to keep programs, and that all cores compile for a GPU. Flags that are set stay.

    Call it before TensorFlow is imported. Without a place to write to, each process compiles anew.
    """
    _add_flag("XLA_FLAGS", PARALLEL_FLAG, str(os.cpu_count() or 1))
    if CACHE_FLAG in os.environ.get("TF_XLA_FLAGS", ""):
        return
    folder = find_folder()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        _remove_old_programs(folder)
    if os.access(folder, os.W_OK):
        _add_flag("TF_XLA_FLAGS", CACHE_FLAG, str(folder))


def find_folder() -> Path:
    """Returns the folder of the programs for this machine's processor and GPUs, and the installed TensorFlow.

    It lies in `xla` of the package's cache.
    """
    facts = [platform.machine()]
    for package in ("tensorflow", "tensorflow-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            facts.append(f"{package} {importlib.metadata.version(package)}")
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        facts += sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
    for gpu in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        with contextlib.suppress(OSError):
            facts.append(gpu.read_text().splitlines()[0])
    return find_cache_folder() / "xla" / hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _add_flag(variable: str, flag: str, value: str) -> None:
    flags = os.environ.get(variable, "")
    if flag not in flags:
        os.environ[variable] = f"{flags} {flag}={value}".strip()


def _remove_old_programs(folder: Path) -> None:
    """Deletes all but the newest programs, and empty ones, which a power failure may leave and no run can read."""
    states = {path: path.stat() for path in folder.glob("*.pb")}
    newest_first = sorted(states, key=lambda path: states[path].st_mtime, reverse=True)
    for path in [*newest_first[MAX_PROGRAMS:], *(path for path in newest_first if not states[path].st_size)]:
        path.unlink(missing_ok=True)
