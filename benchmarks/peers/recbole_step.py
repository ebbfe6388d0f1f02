"""RecBole's BERT4Rec, with RecBole's masking. Needs only RecBole, PyTorch and NumPy."""

import recbole
import torch
import turns
from recbole.config import Config
from recbole.data.interaction import Interaction
from recbole.data.transform import MaskItemSequence
from recbole.model.sequential_recommender.bert4rec import BERT4Rec


class Sizes:
    """Takes the place of a data set: model and masking only read its number of items."""

    def __init__(self, num_items: int) -> None:
        self.num_items = num_items

    def num(self, field: str) -> int:
        return self.num_items + 1


def main() -> None:
    settings, batches = turns.read_input()
    length, masked = settings["max_length"], settings["mask_proportion"]
    options = {
        "n_layers": settings["num_layers"],
        "n_heads": settings["num_heads"],
        "hidden_size": settings["hidden_dim"],
        "inner_size": settings["intermediate_dim"],
        "hidden_dropout_prob": settings["dropout"],
        "attn_dropout_prob": settings["dropout"],
        "mask_ratio": masked,
        "loss_type": "CE",
        "MAX_ITEM_LIST_LENGTH": length,
        "train_neg_sample_args": None,
        "use_gpu": False,
    }
    config = Config(model="BERT4Rec", dataset="generated", config_dict=options)
    sizes, mask = Sizes(settings["num_items"]), MaskItemSequence(config)
    model = BERT4Rec(config, sizes).train()

    def batch_of(histories: list[list[int]]) -> Interaction:
        rows = torch.tensor([history + [0] * (length - len(history)) for history in histories])
        lengths = torch.tensor([len(history) for history in histories])
        return mask(sizes, Interaction({model.ITEM_SEQ: rows, model.ITEM_SEQ_LEN: lengths}))

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    turns.take(model.calculate_loss, [batch_of(histories) for histories in batches], optimizer, recbole.__version__)


if __name__ == "__main__":
    main()
