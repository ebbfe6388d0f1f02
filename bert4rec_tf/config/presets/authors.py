"""The authors' settings of BERT4Rec: of their scripts (`released`) and of the paper's best rows (`table2`, d = 256).

`expect` holds the paper's own results.
"""

from bert4rec_tf.config.presets.entry import Preset

AUTHORS = {"learning_rate": 1e-4, "warmup_steps": 100, "use_token_type": True, "protocol": "fixed"}

ENTRIES = [
    Preset(
        "released",
        "beauty",
        "bert4rec",
        expect="NDCG@10 .1832 (Table 5).",
        takes="About 26 hours on two cores, estimated from the time of a step.",
        settings={
            **AUTHORS,
            "max_length": 50,
            "mask_proportion": 0.6,
            "max_predictions": 30,
            "window_step": 0.1,
            "hidden_dim": 64,
            "dropout": 0.5,
            "attention_dropout": 0.2,
            "steps": 400_000,
        },
    ),
    Preset(
        "released",
        "steam",
        "bert4rec",
        expect="NDCG@10 .2261 (Table 2).",
        takes="About 130 hours on two cores, estimated from the time of a step.",
        settings={
            **AUTHORS,
            "max_length": 50,
            "mask_proportion": 0.4,
            "max_predictions": 20,
            "window_step": 0.5,
            "hidden_dim": 256,
            "dropout": 0.2,
            "attention_dropout": 0.2,
            "steps": 800_000,
        },
    ),
    Preset(
        "released",
        "ml-1m",
        "bert4rec",
        expect="NDCG@10 .4759 (Table 5).",
        takes="About 56 hours on two cores, estimated from the time of a step.",
        settings={
            **AUTHORS,
            "max_length": 200,
            "mask_proportion": 0.2,
            "max_predictions": 40,
            "window_step": 0.5,
            "hidden_dim": 64,
            "dropout": 0.2,
            "attention_dropout": 0.2,
            "steps": 400_000,
        },
    ),
    Preset(
        "released",
        "ml-20m",
        "bert4rec",
        expect="NDCG@10 .4513 (Table 5).",
        takes="About 35 hours on two cores, estimated from the time of a step.",
        settings={
            **AUTHORS,
            "max_length": 200,
            "mask_proportion": 0.2,
            "max_predictions": 20,
            "window_step": 0.5,
            "hidden_dim": 64,
            "dropout": 0.1,
            "attention_dropout": 0.1,
            "steps": 400_000,
        },
    ),
    Preset(
        "table2",
        "beauty",
        "bert4rec",
        expect="NDCG@10 .1862 (Table 2).",
        takes="About 110 hours on two cores, estimated from the time of a step.",
        settings={
            **AUTHORS,
            "max_length": 50,
            "mask_proportion": 0.6,
            "max_predictions": 30,
            "window_step": 0.1,
            "hidden_dim": 256,
            "dropout": 0.5,
            "attention_dropout": 0.2,
            "steps": 400_000,
        },
    ),
    Preset(
        "table2",
        "steam",
        "bert4rec",
        expect="NDCG@10 .2261 (Table 2).",
        takes="About 130 hours on two cores, estimated from the time of a step.",
        settings={
            **AUTHORS,
            "max_length": 50,
            "mask_proportion": 0.4,
            "max_predictions": 20,
            "window_step": 0.5,
            "hidden_dim": 256,
            "dropout": 0.2,
            "attention_dropout": 0.2,
            "steps": 800_000,
        },
    ),
    Preset(
        "table2",
        "ml-1m",
        "bert4rec",
        expect="NDCG@10 .4818 (Table 2).",
        takes="About 155 hours on two cores, estimated from the time of a step.",
        settings={
            **AUTHORS,
            "max_length": 200,
            "mask_proportion": 0.2,
            "max_predictions": 40,
            "window_step": 0.5,
            "hidden_dim": 256,
            "dropout": 0.5,
            "attention_dropout": 0.2,
            "steps": 400_000,
        },
    ),
    Preset(
        "table2",
        "ml-20m",
        "bert4rec",
        expect="NDCG@10 .5340 (Table 2).",
        takes="About 160 hours on two cores, estimated from the time of a step.",
        settings={
            **AUTHORS,
            "max_length": 200,
            "mask_proportion": 0.2,
            "max_predictions": 20,
            "window_step": 0.5,
            "hidden_dim": 256,
            "dropout": 0.1,
            "attention_dropout": 0.1,
            "steps": 400_000,
        },
    ),
]

DROPOUT = {
    "beauty": {64: (0.5, 0.2), 128: (0.5, 0.2), 256: (0.5, 0.2)},
    "steam": {64: (0.1, 0.1), 128: (0.1, 0.1), 256: (0.2, 0.2)},
    "ml-1m": {64: (0.2, 0.2), 128: (0.5, 0.2), 256: (0.5, 0.2)},
    "ml-20m": {64: (0.1, 0.1), 128: (0.1, 0.1), 256: (0.1, 0.1)},
    "synthetic": {64: (0.0, 0.0)},
    "synthetic-orderless": {64: (0.0, 0.0)},
}
"""Data set -> width -> the released `dropout` and `attention_dropout`, for experiments with the width."""


def dropout_of(dataset: str, hidden_dim: int) -> dict[str, float]:
    """Returns the released dropout of the largest known width up to `hidden_dim`, else of the smallest."""
    known = DROPOUT[dataset]
    nearest = max((width for width in known if width <= hidden_dim), default=min(known))
    return dict(zip(("dropout", "attention_dropout"), known[nearest]))
