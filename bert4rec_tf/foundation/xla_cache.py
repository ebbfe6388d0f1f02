"""Where XLA keeps compiled programs, so that a second run on the same machine compiles nothing."""

import contextlib
import hashlib
import importlib.metadata
import os
import platform
import re
import tempfile
from pathlib import Path

from bert4rec_tf.foundation.errors import UserError
from bert4rec_tf.foundation.stores import find_cache_folder

MAX_PROGRAMS = 200
"""The newest programs are kept. Each has some megabytes."""

PROBE_BYTES = 1 << 20
"""What must fit on the disk: without room for a program, TensorFlow ends the training."""

CACHE_FLAG, PARALLEL_FLAG = "--tf_xla_persistent_cache_directory", "--xla_gpu_force_compilation_parallelism"


def set_flags() -> None:
    """Sets XLA's flags: where to keep programs, and that all cores compile for a GPU. Flags that are set stay.

    Call it before TensorFlow is imported. Without a place to write to, each process compiles anew.
    """
    _add_flag("XLA_FLAGS", PARALLEL_FLAG, str(os.cpu_count() or 1))
    if CACHE_FLAG in os.environ.get("TF_XLA_FLAGS", ""):
        return
    try:
        folder = find_folder()
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # other processes write and remove programs too
            _remove_old_programs(folder)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(PROBE_BYTES))
    except (OSError, UserError):
        return
    text = re.sub(r'(["\\])', r"\\\1", str(folder))
    _add_flag("TF_XLA_FLAGS", CACHE_FLAG, f'"{text}"')  # unquoted, it would end at a blank


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
    states = {path: path.stat() for path in folder.glob("*.pb*")}  # also what a killed process has begun to write
    newest_first = sorted(states, key=lambda path: states[path].st_mtime, reverse=True)
    empty = [path for path in newest_first if path.suffix == ".pb" and not states[path].st_size]
    for path in [*newest_first[MAX_PROGRAMS:], *empty]:
        path.unlink(missing_ok=True)
