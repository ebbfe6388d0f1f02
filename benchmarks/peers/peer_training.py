"""Trains the model that the first argument names on `known.npz`, and writes `lists.npy`, ten items for every user.

The model's package is imported where it is needed: its own interpreter runs this file and may lack all the others.
"""

import contextlib
import copy
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

LIST_LENGTH = 10

EARLIER_SECONDS = Path("earlier_seconds.txt")
"""Where a model that can be continued keeps the processor seconds that it has taken so far."""


@dataclass(frozen=True)
class Task:
    """The known actions, user after user, each user's oldest first.

    Attributes:
        users, items: int [actions], from 0.
        deadline: the processor seconds after which no further epoch may begin.
        earlier_seconds: of a process that was killed, and whose work this one continues.
    """

    users: np.ndarray
    items: np.ndarray
    deadline: float
    earlier_seconds: float = 0

    @property
    def num_users(self) -> int:
        return int(self.users.max()) + 1

    @property
    def places(self) -> np.ndarray:
        """The place of each action in its user's history, from 0, int [actions]."""
        return np.arange(len(self.users)) - np.searchsorted(self.users, self.users)

    @property
    def matrix(self) -> sparse.csr_matrix:
        """Float32 [users, items]: 1 for known pairs."""
        matrix = sparse.csr_matrix((np.ones(len(self.users), np.float32), (self.users, self.items)))
        matrix.data[:] = 1  # an item may have come twice
        return matrix

    @property
    def is_over(self) -> bool:
        return self.seconds > self.deadline

    @property
    def seconds(self) -> float:
        return self.earlier_seconds + time.process_time()


class Best:
    """The weights of the epoch with the best score on validation items."""

    def __init__(self) -> None:
        self.score, self.epoch, self.epochs = -1.0, 0, 0
        self.weights: dict[str, Any] = {}

    def keep(self, network: Any, epoch: int, score: float) -> None:
        self.epochs = epoch
        if score > self.score:
            self.score, self.epoch, self.weights = score, epoch, copy.deepcopy(network.state_dict())

    def describe(self, task: Task) -> str:
        return f"{'limit reached after ' * task.is_over}{self.epochs} epochs, best {self.epoch}"


Answer = tuple[np.ndarray, str]
"""int [users, LIST_LENGTH], the best first, -1 where there is no item; and the settings in words, if they say more than
that all are the model's defaults."""


def to_lists(table: pd.DataFrame, num_users: int) -> np.ndarray:
    """Returns the lists of a table with columns of user, item and rank, from 1."""
    lists = np.full([num_users, LIST_LENGTH], -1)
    user, item = (next(name for name in table if name.startswith(role)) for role in ("user", "item"))
    lists[table[user], table["rank"] - 1] = table[item]
    return lists


def train_als(task: Task) -> Answer:
    from implicit.als import AlternatingLeastSquares

    return list_with_implicit(AlternatingLeastSquares(num_threads=1, random_state=1), task)


def train_bm25(task: Task) -> Answer:
    from implicit.nearest_neighbours import BM25Recommender

    return list_with_implicit(BM25Recommender(num_threads=1), task)


def list_with_implicit(model: Any, task: Task) -> Answer:
    model.fit(task.matrix, show_progress=False)
    items, scores = model.recommend(np.arange(task.num_users), task.matrix, N=LIST_LENGTH)
    is_listed = (scores > np.finfo(np.float32).min) & (scores != 0)  # BM25 fills short lists with seen items, at 0
    return np.where(is_listed, items, -1), ""


def to_rectools(task: Task) -> Any:
    from rectools.dataset import Dataset

    times = pd.Timestamp(2020, 1, 1) + pd.to_timedelta(task.places, unit="min")
    columns = {"user_id": task.users, "item_id": task.items, "weight": 1.0, "datetime": times}
    return Dataset.construct(pd.DataFrame(columns))


def list_with_rectools(model: Any, data: Any, users: np.ndarray) -> np.ndarray:
    return to_lists(model.recommend(users, data, LIST_LENGTH, filter_viewed=True), users.max() + 1)[users]


def train_ease(task: Task) -> Answer:
    from rectools.models import EASEModel

    model, data = EASEModel(recommend_n_threads=1), to_rectools(task)
    return list_with_rectools(model.fit(data), data, np.arange(task.num_users)), ""


def train_rectools_sasrec(task: Task) -> Answer:
    from rectools.models import SASRecModel
    from unpadded import UnpaddedSASRecLayers

    return train_rectools(SASRecModel, UnpaddedSASRecLayers, task)


def train_rectools_bert4rec(task: Task) -> Answer:
    from rectools.models import BERT4RecModel
    from unpadded import UnpaddedBERT4RecLayers

    return train_rectools(BERT4RecModel, UnpaddedBERT4RecLayers, task)


def train_rectools(kind: type, layers: type, task: Task) -> Answer:
    """Selects the epoch by HR@10 of the last known items of 2,048 users, as RecTools' own benchmark does.

    That is github.com/blondered/bert4rec_repro. It takes at most 200 epochs, and stops after 50 without a gain. A run
    that was killed goes on after its last epoch, from `state.pt`.

    Args:
        kind: RecTools' class of the model.
        layers: its blocks without the products of padding.
        task: the known actions.
    """
    from pytorch_lightning import seed_everything
    from unpadded import UnpaddedLoss

    seed_everything(1)
    validation_users = np.sort(np.random.default_rng(1).permutation(task.num_users)[:2_048])
    is_held_out = np.append(task.users[1:] != task.users[:-1], True) & np.isin(task.users, validation_users)
    data = to_rectools(Task(task.users[~is_held_out], task.items[~is_held_out], task.deadline))
    parts = {"lightning_module_type": UnpaddedLoss, "transformer_layers_type": layers}
    positions = kind().session_max_len
    model, best = kind(**parts, transformer_layers_kwargs={"session_max_len": positions}), Best()
    if Path("state.pt").exists():
        load_rectools_state(model, data, best)
        np.random.seed(best.epochs)  # BERT4Rec would draw the masks of its first epochs again
    while best.epochs < 200 and best.epochs - best.epoch < 50 and not task.is_over:
        model.fit_partial(data, min_epochs=1, max_epochs=1)
        lists = list_with_rectools(model, data, validation_users)
        hits = int((lists == task.items[is_held_out, None]).sum())
        best.keep(model.torch_model, best.epochs + 1, hits)
        print(f"epoch {best.epochs}: {hits} of {len(validation_users)} items found", file=sys.stderr, flush=True)
        save_rectools_state(model, best, task)
    model.torch_model.load_state_dict(best.weights)
    sizes = f"d {model.n_factors}, {model.n_blocks} blocks, {model.session_max_len} items, softmax"
    lists = list_with_rectools(model, to_rectools(task), np.arange(task.num_users))
    return lists, f"padding skipped; {sizes}; {best.describe(task)}"


def save_rectools_state(model: Any, best: Best, task: Task) -> None:
    """Writes weights, optimizer, best epoch and random state to `state.pt`."""
    import torch

    parts = {"network": model.torch_model, "optimizer": model.lightning_model.optimizer}
    state = {name: part.state_dict() for name, part in parts.items()}
    torch.save({**state, "best": vars(best), "random": torch.get_rng_state()}, "state.new")
    os.replace("state.new", "state.pt")
    EARLIER_SECONDS.write_text(str(task.seconds))


def load_rectools_state(model: Any, data: Any, best: Best) -> None:
    """Takes over `state.pt`. Lightning draws otherwise in its first epoch, so users come in another order."""
    import torch

    state = torch.load("state.pt", weights_only=True)
    model._build_model_from_dataset(data)
    model.fit_trainer = copy.deepcopy(model._trainer)
    model.is_fitted = model.lightning_model.is_fitted = True  # else the next epoch begins from new weights
    model.torch_model.load_state_dict(state["network"])
    model.lightning_model.configure_optimizers().load_state_dict(state["optimizer"])
    vars(best).update(state["best"])
    torch.set_rng_state(state["random"])


def train_recbole_bert4rec(task: Task) -> Answer:
    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation
    from recbole.model.sequential_recommender.bert4rec import BERT4Rec
    from recbole.trainer import Trainer
    from recbole.utils import init_seed

    Path("known").mkdir(exist_ok=True)
    rows = pd.DataFrame({"user_id:token": task.users, "item_id:token": task.items, "timestamp:float": task.places})
    rows.to_csv("known/known.inter", sep="\t", index=False)
    options = {
        "data_path": ".",
        "load_col": {"inter": ["user_id", "item_id", "timestamp"]},
        "eval_args": {"split": {"LS": "valid_only"}, "order": "TO", "mode": "full"},
        "train_neg_sample_args": None,  # the loss is over all items
        "use_gpu": False,
        "show_progress": False,
    }
    config = Config("BERT4Rec", "known", config_dict=options)
    init_seed(config["seed"], config["reproducibility"])
    dataset = create_dataset(config)
    training, validation, _ = data_preparation(config, dataset)
    model, best = BERT4Rec(config, training.dataset), Best()

    def keep_best(epoch: int, score: float) -> None:
        best.keep(model, epoch + 1, score)
        if task.is_over:
            raise TimeoutError

    with contextlib.suppress(TimeoutError):
        Trainer(config, model).fit(training, validation, saved=False, verbose=False, callback_fn=keep_best)
    model.load_state_dict(best.weights)
    sizes = f"d {config['hidden_size']}, {config['n_layers']} blocks, {model.max_seq_length} items"
    batch = f"batches of {config['train_batch_size']}"
    return list_with_recbole(model, dataset, task), f"{sizes}, {batch}; {best.describe(task)}"


def list_with_recbole(model: Any, dataset: Any, task: Task) -> np.ndarray:
    import torch
    from recbole.data.interaction import Interaction

    numbers = dataset.token2id("item_id", np.arange(task.items.max() + 1).astype(str))
    places_from_end = np.bincount(task.users)[task.users] - task.places
    is_read = places_from_end <= model.max_seq_length
    lengths = np.bincount(task.users[is_read])
    places = lengths[task.users] - places_from_end
    rows = np.zeros([task.num_users, model.max_seq_length], int)
    rows[task.users[is_read], places[is_read]] = numbers[task.items[is_read]]
    items_by_number = np.argsort(np.append(numbers, 0))  # RecBole's items begin at 1; 0 is padding
    lists = []
    model.eval()
    for users in np.split(np.arange(task.num_users), np.arange(512, task.num_users, 512)):
        batch = {model.ITEM_SEQ: torch.tensor(rows[users]), model.ITEM_SEQ_LEN: torch.tensor(lengths[users])}
        with torch.no_grad():
            scores = model.full_sort_predict(Interaction(batch))
        listers, seen_items = task.matrix[users].nonzero()
        scores[listers, numbers[seen_items]] = scores[:, 0] = -torch.inf
        lists.append(items_by_number[scores.topk(LIST_LENGTH).indices.numpy()])
    return np.concatenate(lists)


def train_ours(task: Task, model: str) -> Answer:
    import bert4rec_tf

    frame = pd.DataFrame({"user": task.users, "item": task.items, "time": task.places})
    fitted_model = bert4rec_tf.fit(frame, model=model, silent=True)
    table = fitted_model.recommend_all(k=LIST_LENGTH, exclude_seen=True, silent=True)
    return to_lists(table, task.num_users), ""


MODELS: dict[str, tuple[str, Callable[[Task], Answer]]] = {
    "implicit ALS": ("implicit", train_als),
    "implicit BM25": ("implicit", train_bm25),
    "RecTools EASE": ("rectools", train_ease),
    "RecTools SASRec": ("rectools", train_rectools_sasrec),
    "RecTools BERT4Rec": ("rectools", train_rectools_bert4rec),
    "RecBole BERT4Rec": ("recbole", train_recbole_bert4rec),
    "item_transitions": ("bert4rec_tf", lambda task: train_ours(task, "item_transitions")),
    "SASRec": ("bert4rec_tf", lambda task: train_ours(task, "sasrec")),
    "BERT4Rec": ("bert4rec_tf", lambda task: train_ours(task, "bert4rec")),
    "auto": ("bert4rec_tf", lambda task: train_ours(task, "auto")),
}
"""Model -> its package, and how it is trained."""


def measure_matrix_rate(size: int = 2_048) -> float:
    """Returns NumPy's FLOP/s of a float32 matrix product, by processor time."""
    matrix, seconds = np.random.default_rng(0).random((size, size), np.float32), []
    for _ in range(5):
        begin = time.process_time()
        matrix @ matrix
        seconds.append(time.process_time() - begin)
    return 2 * size**3 / min(seconds)


def main() -> None:
    (package, train), content = MODELS[sys.argv[1]], np.load("known.npz")
    earlier_seconds = float(EARLIER_SECONDS.read_text()) if EARLIER_SECONDS.exists() else 0.0
    lists, settings = train(Task(content["users"], content["items"], 60 * float(content["minutes"]), earlier_seconds))
    np.save("lists.npy", lists)
    (peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    seconds = earlier_seconds + sum(os.times()[:4])
    costs = {"processor": seconds, "memory": int(peak.split()[1]) * 1024, "rate": measure_matrix_rate()}
    version = f"{package} {importlib.metadata.version(package)}"
    print("\n" + json.dumps({**costs, "package": version, "settings": settings}), flush=True)


if __name__ == "__main__":
    main()
