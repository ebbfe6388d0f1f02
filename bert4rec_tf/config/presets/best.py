"""The preset `best`: the authors' model, trained for quality per minute (experiments/journal/networks.md).

For BERT4Rec, short histories are cut into prefixes, so that every item is a target once, after those before it, and a
large epsilon lets rare items keep their initial vectors. For ML-1m's long histories, windows with many masks do better.
"""

from bert4rec_tf.config.data_names import OWN
from bert4rec_tf.config.model_settings import TRANSITIONS
from bert4rec_tf.config.presets import fast, own

SASREC = {
    **own.SOFTMAX_SASREC,
    "hidden_dim": 128,
    "initial_vectors": "cooccurrence",
    "dropout": 0.2,
    "warmup_steps": 200,
    "protocol": "fixed",
    "evaluate_every": 500,
}

BEST_SETTINGS: fast.Table = {
    "beauty": {
        "bert4rec": {
            **fast.BERT4REC,
            "max_length": 50,
            **own.PREFIXES,
            **own.LIKE_BEAUTY,
            "initial_vectors": "cooccurrence",
            "initial_layers": "identity",
            "attention_dropout": 0.2,
            "warmup_steps": 200,
            "protocol": "fixed",
            "steps": 2_400,
            "evaluate_every": 400,
            "evidence": TRANSITIONS,
            "evidence_gain": 16.0,
            "evidence_popularity": 0.0,
        },
        "sasrec": {**SASREC, "dropout": 0.4, "steps": 3_500},
    },
    "ml-1m": {
        "bert4rec": {
            **fast.BERT4REC_ML_1M,
            "hidden_dim": 128,
            "initial_vectors": "cooccurrence",
            "initial_layers": "identity",
            "dropout": 0.1,
            "attention_dropout": 0.1,
            "warmup_steps": 500,
            "steps": 20_000,
            "evidence": TRANSITIONS,
            "evidence_gain": 4.0,
            "evidence_popularity": -0.4,
        },
        "sasrec": {**SASREC, "max_length": 200, "steps": 4_000},
    },
    OWN: {"bert4rec": {}, "sasrec": {}},
}
"""For your own data, `own` has the rules."""
