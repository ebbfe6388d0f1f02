"""Where XLA keeps compiled programs, so that a second run on the same machine compiles nothing.

TensorFlow writes its programs in place, and a half-written one is an error for every later run. So each process has a
folder of its own, with links to the programs there are, and moves its new ones to the others when it ends. What a
killed process had not moved is lost.
"""

import atexit
import contextlib
import hashlib
import importlib.metadata
import os
import platform
import shutil
from pathlib import Path

from bert4rec_tf.foundation.processes import get_host_code, is_running
from bert4rec_tf.foundation.stores import find_cache_folder

MAX_PROGRAMS = 200
"""The newest programs are kept. Each has some megabytes."""

CACHE_FLAG, PARALLEL_FLAG = "--tf_xla_persistent_cache_directory", "--xla_gpu_force_compilation_parallelism"
OWN_PREFIX = "process-"
"""The name of a process' own folder, before the code of its machine and its number."""


def set_flags() -> None:
    """Sets XLA's flags: where to keep programs, and that all cores compile for a GPU. Flags that are set stay.

    Call it before TensorFlow is imported. Without a place to write to, each process compiles anew.
    """
    _add_flag("XLA_FLAGS", PARALLEL_FLAG, str(os.cpu_count() or 1))
    if CACHE_FLAG in os.environ.get("TF_XLA_FLAGS", ""):
        return
    folder = find_folder()
    with contextlib.suppress(OSError):
        own = _make_own_folder(folder)
        _add_flag("TF_XLA_FLAGS", CACHE_FLAG, str(own))
        atexit.register(_share_programs, own, folder, os.getpid())


def find_folder() -> Path:
    """Returns the folder of the programs for this machine's processor and GPUs, and the installed TensorFlow.

    It lies in `xla` of the package's cache.
    """
    facts = [platform.machine(), _read_version("tensorflow"), _read_version("tensorflow-cpu")]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        facts += sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
    for gpu in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        with contextlib.suppress(OSError):
            facts.append(gpu.read_text().splitlines()[0])
    return find_cache_folder() / "xla" / hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _read_version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _add_flag(variable: str, flag: str, value: str) -> None:
    flags = os.environ.get(variable, "")
    if flag not in flags:
        os.environ[variable] = f"{flags} {flag}={value}".strip()


def _make_own_folder(folder: Path) -> Path:
    """Returns a new folder with links to the newest programs.

    Deletes older programs, and what processes of this machine left that have ended.
    """
    prefix = f"{OWN_PREFIX}{get_host_code()}-"
    own = folder / f"{prefix}{os.getpid()}"
    own.mkdir(parents=True, exist_ok=True)
    programs = {path: path.stat().st_mtime for path in folder.iterdir() if path.is_file()}
    newest_first = sorted(programs, key=programs.__getitem__, reverse=True)
    for path in newest_first[:MAX_PROGRAMS]:
        with contextlib.suppress(FileExistsError):
            os.link(path, own / path.name)
    for path in newest_first[MAX_PROGRAMS:]:
        path.unlink(missing_ok=True)
    for other in folder.glob(f"{prefix}*"):
        number = other.name.removeprefix(prefix)
        if os.name != "nt" and number.isdigit() and not is_running(int(number)):
            shutil.rmtree(other, ignore_errors=True)
    return own


def _share_programs(own: Path, folder: Path, process: int) -> None:
    """Moves the new programs of a process that ends to the others. A fork of it does nothing."""
    if os.getpid() != process:
        return
    with contextlib.suppress(OSError):
        for path in own.iterdir():
            if path.stat().st_nlink == 1 and path.stat().st_size:
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
                path.replace(folder / path.name)
    shutil.rmtree(own, ignore_errors=True)
