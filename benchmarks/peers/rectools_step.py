"""RecTools' BERT4Rec, with RecTools' masking. Needs only RecTools, PyTorch and NumPy."""

import numpy as np
import pandas as pd
import rectools
import torch
import turns
from rectools import Columns
from rectools.dataset import Dataset
from rectools.models import BERT4RecModel


def catalogue(num_items: int, max_length: int) -> Dataset:
    """Returns a data set with every item once, and at most `max_length` per user: RecTools would cut off the rest."""
    items = np.arange(1, num_items + 1)
    columns = {Columns.User: items // max_length, Columns.Item: items, Columns.Weight: 1.0}
    return Dataset.construct(pd.DataFrame({**columns, Columns.Datetime: pd.Timestamp(2020, 1, 1)}))


def main() -> None:
    settings, batches = turns.read_input()
    model = BERT4RecModel(
        n_blocks=settings["num_layers"],
        n_heads=settings["num_heads"],
        n_factors=settings["hidden_dim"],
        dropout_rate=settings["dropout"],
        mask_prob=settings["mask_proportion"],
        session_max_len=settings["max_length"],
        batch_size=settings["batch_size"],
        train_min_user_interactions=1,
        loss="softmax",
        lr=1e-4,
    )
    # `fit` also does this, but then starts a trainer, whose steps cannot be taken in turns.
    model._build_model_from_dataset(catalogue(settings["num_items"], settings["max_length"]))
    module, prepare = model.lightning_model, model.data_preparator
    numbers = prepare.item_id_map.convert_to_internal(np.arange(1, settings["num_items"] + 1))

    def batch_of(histories: list[list[int]]) -> dict[str, torch.Tensor]:
        rows = [numbers[np.array(history) - 1].tolist() for history in histories]
        return prepare._collate_fn_train([(row, [1.0] * len(row), {}) for row in rows])

    def loss_of(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return module.loss_calculator(module.get_batch_logits(batch), batch["y"], batch["yw"])

    module.train()
    module.on_train_start()
    optimizer = module.configure_optimizers()
    turns.take(loss_of, [batch_of(histories) for histories in batches], optimizer, rectools.__version__)


if __name__ == "__main__":
    main()
