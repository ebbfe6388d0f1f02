"""The program that users start, in the process of the tests: no second start of TensorFlow."""

import contextlib
import io
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from absl.testing import flagsaver

from bert4rec_tf.commands import main
from bert4rec_tf.commands import run as runner
from bert4rec_tf.foundation.files import LOCK
from bert4rec_tf.foundation.startup import exit_on_error


@dataclass(frozen=True)
class Ended:
    """How a command ended, named as in `subprocess.CompletedProcess`."""

    returncode: int
    stdout: str
    stderr: str


def run(*flags: str, cwd: Path, data: Path | None = None) -> Ended:
    """Does what `python -m bert4rec_tf.run` does with these flags, in the folder `cwd`.

    What can be set only once in a process (--threads, --replicas) needs one of its own.

    Args:
        flags: of the command line.
        cwd: where it is started; the user's cache lies in it too.
        data: the folder that BERT4REC_DATA names; None for none.
    """
    with _user_in(cwd, data), flagsaver.flagsaver():
        return _ended(lambda: exit_on_error(lambda: runner.carry_out(runner.parse_request(["run", *flags]))))


def console(*arguments: str, cwd: Path) -> Ended:
    """Does what `bert4rec` does with these arguments, other than `run`."""
    with _user_in(cwd, None), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["bert4rec", *arguments])
        return _ended(main.main)


@contextlib.contextmanager
def _user_in(cwd, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd)
        patch.setenv("XDG_CACHE_HOME", str(cwd / "cache"))
        patch.delenv("BERT4REC_DATA", raising=False)
        if data is not None:
            patch.setenv("BERT4REC_DATA", str(data))
        yield


def _ended(command):
    code = 0
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            command()
        except SystemExit as end:
            code = end.code or 0
    return Ended(code, out.getvalue(), err.getvalue())


def finished(*flags: str, cwd: Path, data: Path | None = None) -> Ended:
    """Runs to the end, without an error."""
    ended = run(*flags, cwd=cwd, data=data)
    assert ended.returncode == 0, ended.stderr
    return ended


EXPECTED = ("warning: ", "training: ")
"""How the lines before an error begin."""


def refused(ended) -> str:
    """Returns the one line that a mistake ends in, after warnings and lines of the curve.

    `ended`: an `Ended` or a finished process.
    """
    assert ended.returncode == 2, ended.stderr
    *others, line = ended.stderr.splitlines()
    assert line.startswith("error: ") and all(other.startswith(EXPECTED) for other in others), ended.stderr
    return line


def contents(folder: Path) -> dict[str, bytes | None]:
    """Everything in a folder but the locks of work directories; None for a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if not (path.name == LOCK and path.relative_to(folder).parts[0] == "work")
    }
