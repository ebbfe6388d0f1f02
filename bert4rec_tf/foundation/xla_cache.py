"""Where XLA keeps compiled programs, so that a second run on the same machine compiles nothing."""

import contextlib
import hashlib
import importlib.metadata
import os
import platform
from pathlib import Path

MAX_PROGRAMS = 200
"""The newest programs are kept. Each has some megabytes."""

CACHE_FLAG, PARALLEL_FLAG = "--tf_xla_persistent_cache_directory", "--xla_gpu_force_compilation_parallelism"


def set_flags() -> None:
    """Sets XLA's flags: where to keep programs, and that all cores compile for a GPU. Flags that are set stay.

    Call it before TensorFlow is imported.
    """
    _add_flag("XLA_FLAGS", PARALLEL_FLAG, str(os.cpu_count() or 1))
    folder = find_folder()
    with contextlib.suppress(OSError):  # without a place to write to, each process compiles anew
        folder.mkdir(parents=True, exist_ok=True)
        _delete_oldest(folder)
        _add_flag("TF_XLA_FLAGS", CACHE_FLAG, str(folder))


def find_folder() -> Path:
    """Returns the folder of the programs for this machine's processor and GPUs, and the installed TensorFlow.

    It lies in `bert4rec_tf/xla` of the user's cache.
    """
    facts = [platform.machine(), _read_version("tensorflow"), _read_version("tensorflow-cpu")]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        facts += sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
    for gpu in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        with contextlib.suppress(OSError):
            facts.append(gpu.read_text().splitlines()[0])
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "bert4rec_tf" / "xla" / hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _read_version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _add_flag(variable: str, flag: str, value: str) -> None:
    flags = os.environ.get(variable, "")
    if flag not in flags:
        os.environ[variable] = f"{flags} {flag}={value}".strip()


def _delete_oldest(folder: Path) -> None:
    times = {path: path.stat().st_mtime for path in folder.iterdir()}
    for path in sorted(times, key=times.__getitem__, reverse=True)[MAX_PROGRAMS:]:
        path.unlink(missing_ok=True)
