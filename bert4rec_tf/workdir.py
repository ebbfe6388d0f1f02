"""The folder of one run: what lies where, and whose it is."""

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import bert4rec_tf
from bert4rec_tf import files
from bert4rec_tf.config import Run
from bert4rec_tf.errors import UserError

CONFIG = "config.json"
PACKAGES = ("tensorflow", "keras", "numpy")


class WorkDirectory:
    """The folder of one run. Another run in it is refused.

    Attributes:
        path: the folder.
        prepared: where training examples and candidates lie; may be shared by many runs.
    """

    def __init__(self, path: Path, prepared: Path | None = None) -> None:
        self.path = path
        self.prepared = prepared or path / "prepared"

    @classmethod
    def of(cls, run: Run, path: Path | None = None, prepared: Path | None = None) -> "WorkDirectory":
        """Returns the folder at `path`, else `runs/<dataset>-<model>-<digest>`."""
        return cls(path or Path("runs") / f"{run.dataset}-{run.model}-{run.digest}", prepared)

    @property
    def config(self) -> Path:
        return self.path / CONFIG

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.json"

    @property
    def vocabulary(self) -> Path:
        return self.path / "vocabulary.txt"

    def phase(self, name: str) -> Path:
        """The folder of one training: `choose` (validation item held out) or `final`."""
        return self.path / name

    def ranks(self, part: str) -> Path:
        return self.path / f"ranks-{part}.npz"

    def claim(self, run: Run, fingerprint: str) -> None:
        """Makes the folder this run's on these data, or checks that it is.

        Raises:
            UserError: where it holds another run, other data or something else, or cannot be written.
        """
        if self.config.exists():
            self._check(run, fingerprint)
            return
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise UserError(f"{self.path}: is not a work directory of this program, and not empty")
        files.make_folder(self.path)
        content = {"run": run.to_dict(), "digest": run.digest, "data_fingerprint": fingerprint, "versions": versions()}
        files.write_json(self.config, content)

    def _check(self, run: Run, fingerprint: str) -> None:
        content = self.read_config()
        if content["digest"] != run.digest:
            changed = _first_difference(content["run"], run.to_dict())
            raise UserError(f"{self.path}: holds another run ({changed}); name another --workdir or change it back")
        if content["data_fingerprint"] != fingerprint:
            raise UserError(f"{self.path}: was made from other data than {run.dataset!r} has now")

    def read_config(self) -> dict[str, Any]:
        """Returns what `claim` wrote. Raises UserError where there is none, or none of this program."""
        try:
            content = json.loads(self.config.read_text(encoding="utf-8"))
            content["digest"], content["run"], content["data_fingerprint"]
            return content
        except OSError as error:
            raise UserError(f"{self.path}: no work directory ({self.config.name}: {error.strerror})") from error
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{self.config}: not the configuration of a run") from error


def versions() -> dict[str, str]:
    """Returns the versions of what decides the bits of a result."""
    installed = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"bert4rec_tf": bert4rec_tf.__version__, **installed}


def _first_difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    for name, value in old.items():
        other = new.get(name)
        if isinstance(value, dict) and isinstance(other, dict) and value != other:
            return _first_difference(value, other)
        if value != other:
            return f"there {name}={value}, now {name}={other}"
    return "with other settings"
