"""A finished run that something happened to: what, the flags, and what the one line must tell."""

import fcntl
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bert4rec_tf.foundation import npz
from bert4rec_tf.foundation.files import LOCK
from bert4rec_tf.training import checkpoints
from support.mistakes import AGAIN, BEAUTY, EVALUATE, EXPORT, Mistake, lines, text


def of_run(name: str, flags: str, *words: str, set_up: Callable[[Path], Any] = lambda folder: None) -> Mistake:
    return Mistake(name, flags, words, lambda folder: set_up(folder / "work"), finished=True)


def written(name: str, content: bytes | str) -> Callable[[Path], None]:
    def write(work: Path) -> None:
        (work / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return write


def change_array(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Path], None]:
    """Changes an array of vocabulary.npz. Ids are changed as an array of texts."""

    def rewrite(work: Path) -> None:
        content = npz.read(work / "vocabulary.npz")
        array = content[name]
        if name in ("items", "users"):
            content[name] = npz.encode_lines(change(np.array(npz.decode_lines(array), object)).tolist())
        else:
            content[name] = change(array)
        npz.write(work / "vocabulary.npz", content)

    return rewrite


def recorded(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Changes what config.json holds."""

    def rewrite(work: Path) -> None:
        content = json.loads((work / "config.json").read_text())
        change(content)
        (work / "config.json").write_text(json.dumps(content))

    return rewrite


def without(*names: str) -> Callable[[Path], None]:
    def delete(work: Path) -> None:
        for name in names:
            shutil.rmtree(work / name) if (work / name).is_dir() else (work / name).unlink()

    return delete


def config_folder(work: Path) -> None:
    (work / "config.json").unlink()
    (work / "config.json").mkdir()


def best_of_another_step(work: Path) -> None:
    best = work / "select" / "best.npz"
    step = checkpoints.read_header(best)["state"]["step"]
    others = (path for path in best.parent.glob("step-*.npz") if checkpoints.read_header(path)["state"]["step"] != step)
    best.write_bytes(next(others).read_bytes())


def file_for_phase(work: Path) -> None:
    shutil.rmtree(work / "select")
    (work / "select").write_text("mine")


def held(work: Path) -> Any:
    """Holds the folder as another process would. The caller keeps what is returned as long as it shall last."""
    file = io.FileIO(work / LOCK, "a")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file


def other_data(work: Path) -> None:
    (work.parent / "beauty.txt").write_bytes(text(lines()[:-1]))


def setting(group: str, **values: Any) -> Callable[[Path], None]:
    return recorded(lambda content: content["run"][group].update(values))


NO_RECORD = ("work/config.json: ", "another --workdir")
VOCABULARY = ("work/vocabulary.npz: ", "delete it", "--mode=evaluate")
OF_RUNS = [
    of_run("another run", f"{AGAIN} --dropout=0.3", "holds another run (there dropout=0.5, now dropout=0.3)"),
    of_run("exporting another run", f"{EXPORT} {BEAUTY} --steps=5", "holds another run (there steps=4, now steps=5)"),
    of_run("other data", AGAIN, "work: was made from other data than 'beauty'", "another --workdir", set_up=other_data),
    of_run("a folder in use", AGAIN, "work: another process is using this folder", "another --workdir", set_up=held),
    of_run(
        "a newer version",
        AGAIN,
        *("work/config.json: not a run", "made by another version", "format 6; this one has 5", "another --workdir"),
        set_up=recorded(lambda content: content.update(format=6)),
    ),
    of_run("a record cut short", AGAIN, *NO_RECORD, set_up=written("config.json", '{"format": 5, "run": {')),
    of_run("a record that is a folder", AGAIN, "config.json: Is a directory", set_up=config_folder),
    *[
        of_run(
            f"a record without its {key}", flags, *NO_RECORD, set_up=recorded(lambda content, key=key: content.pop(key))
        )
        for key, flags in {"digest": AGAIN, "environment": AGAIN, "run": EXPORT, "data_fingerprint": EVALUATE}.items()
    ],
    of_run(
        "a record of an unknown setting",
        EVALUATE,
        *(*NO_RECORD, "'hiden_dim'. Did you mean 'hidden_dim'?"),
        set_up=setting("architecture", hiden_dim=8),
    ),
    of_run("a changed record", EXPORT, *NO_RECORD, "changed", set_up=setting("architecture", num_layers=2)),
    of_run("a changed item", AGAIN, *VOCABULARY, set_up=change_array("items", lambda ids: np.append("999", ids[1:]))),
    of_run("no items", EXPORT, *VOCABULARY, set_up=change_array("items", lambda ids: ids[:0])),
    of_run("a vocabulary cut short", EXPORT, *VOCABULARY, set_up=written("vocabulary.npz", b"PK")),
    of_run("no vocabulary", EXPORT, *VOCABULARY, "No such file", set_up=without("vocabulary.npz")),
    *[
        of_run(f"{name} of other data", EVALUATE, *VOCABULARY, set_up=change_array(name, lambda counts: counts + 1))
        for name in ("counts", "training_counts")
    ],
    of_run(
        "a training count too few",
        EXPORT,
        *VOCABULARY,
        set_up=change_array("training_counts", lambda counts: counts[:-1]),
    ),
    of_run(
        "best weights of another step",
        AGAIN,
        "best.npz: is from step",
        "delete work/select",
        set_up=best_of_another_step,
    ),
    of_run("measuring before training", EVALUATE, "work/retrain: no finished training; run", set_up=without("retrain")),
    of_run("a file for a training", AGAIN, "work/select: ", "File exists", set_up=file_for_phase),
    of_run("exporting over something else", f"{EXPORT} --export_dir=work", "work: holds other files", "another folder"),
    of_run("a whole run over something else", f"{AGAIN} --export_dir=work/select", "select: holds other files"),
]
