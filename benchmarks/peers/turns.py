"""What the peers' scripts share: they take training steps whenever the parent process asks.

The peer's own interpreter runs this. It has PyTorch, but not this project.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

SIZE = 2_048


def matrix_rate() -> float:
    """Returns the FLOP/s of a float32 matrix product."""
    matrix, seconds = torch.rand(SIZE, SIZE), []
    for _ in range(9):
        begin = time.perf_counter()
        torch.mm(matrix, matrix)
        seconds.append(time.perf_counter() - begin)
    return 2 * SIZE**3 / min(seconds)


def read_input() -> tuple[dict[str, Any], list[list[list[int]]]]:
    """Returns the settings and the batches of histories, from the task file in the first argument."""
    content = np.load(Path(sys.argv[1]))
    settings = json.loads(str(content["settings"]))
    torch.set_num_threads(settings["threads"])
    histories = [[int(item) for item in row if item] for row in content["histories"]]
    size = settings["batch_size"]
    return settings, [histories[begin : begin + size] for begin in range(0, len(histories), size)]


def take(
    loss_of: Callable[[Any], torch.Tensor], batches: Iterable[Any], optimizer: torch.optim.Optimizer, version: str
) -> None:
    """Reads numbers of steps (forward, backward, optimizer) from the parent, takes them, and answers each line."""
    rows = cycle(batches)
    _answer(version=version, torch=torch.__version__, threads=torch.get_num_threads(), rate=matrix_rate())
    for line in sys.stdin:
        begin = time.process_time()
        for _ in range(int(line)):
            optimizer.zero_grad()
            loss = loss_of(next(rows))
            loss.backward()
            optimizer.step()
        _answer(loss=float(loss.detach()), processor=time.process_time() - begin)


def _answer(**content: Any) -> None:
    print(json.dumps(content), file=sys.__stdout__, flush=True)
