"""The preset `fast`, the default: settings for two cores, found on the validation items.

If `protocol` is `fixed`, the number of steps was chosen before, on the validation items or (BERT4Rec on ML-1m) by the
time they take, so one training is enough.
"""

from bert4rec_tf.config.data_names import OWN
from bert4rec_tf.config.presets.entry import NO_ESTIMATE, NOT_MEASURED, Preset
from bert4rec_tf.config.presets.own import Shop, bert4rec_settings

NO_ORDER = "Nothing: there is no order to learn."
EQUAL_KERNELS = "Measured before a fix (both kernels of the GRU began with equal weights); to be measured again."
TWO_TRAININGS = "At most 10,000 steps, then a second training for the selected number of steps."

AT_MOST_1_500 = {"steps": 1_500, "evaluate_every": 300, "patience": 5}
AT_MOST_10_000 = {"steps": 10_000, "evaluate_every": 500, "patience": 5}
AT_MOST_40_000 = {"steps": 40_000, "evaluate_every": 1_000, "patience": 5}
"""For trainings that select the number of steps: at most this many."""

BERT4REC = {
    "hidden_dim": 64,
    "learning_rate": 1e-3,
    "warmup_steps": 1_000,
    "bias_correction": True,
    "batch_size": 128,
}
BERT4REC_SYNTHETIC = {
    "max_length": 20,
    "mask_proportion": 0.5,
    "max_predictions": 10,
    "window_step": 0.5,
    "hidden_dim": 64,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "learning_rate": 3e-3,
    "warmup_steps": 500,
    "batch_size": 128,
    "steps": 1_500,
    "evaluate_every": 300,
}

ADAM = {
    "learning_rate": 1e-3,
    "schedule": "constant",
    "warmup_steps": 0,
    "bias_correction": True,
    "epsilon": 1e-8,
    "weight_decay": 0.0,
    "clip_norm": 0.0,
}
BPR_MF = {**ADAM, "batch_size": 256}
NCF = {**ADAM, "batch_size": 256}
FPMC = {**ADAM, "batch_size": 256}
GRU4REC = {**ADAM, "optimizer": "adagrad", "learning_rate": 0.05, "batch_size": 128}
GRU4REC_PLUS = {**GRU4REC, "momentum": 0.1}
CASER = {**ADAM, "batch_size": 512}
SASREC = {**ADAM, "batch_size": 128, "beta_2": 0.98}
"""The optimizer of the models' authors, for every data set. If theirs is plain SGD (BPR-MF, FPMC) or changes with the
data set (the GRUs), one that works for all of these."""

ENTRIES = [
    # The built-in data. Its next item depends on the last one only; with three targets, Caser would have to rank the
    # items after the next one high too.
    Preset("fast", "synthetic", "pop", NOT_MEASURED, NOT_MEASURED, {}),
    Preset("fast", "synthetic", "item_cooccurrence", NOT_MEASURED, NOT_MEASURED, {}),
    Preset("fast", "synthetic", "bpr_mf", NOT_MEASURED, NOT_MEASURED, {**BPR_MF, **AT_MOST_1_500}),
    Preset("fast", "synthetic", "ncf", NOT_MEASURED, NOT_MEASURED, {**NCF, **AT_MOST_1_500}),
    Preset("fast", "synthetic", "fpmc", NOT_MEASURED, NOT_MEASURED, {**FPMC, **AT_MOST_1_500}),
    Preset("fast", "synthetic", "gru4rec", NOT_MEASURED, NOT_MEASURED, {**GRU4REC, **AT_MOST_1_500}),
    Preset("fast", "synthetic", "gru4rec_plus", NOT_MEASURED, NOT_MEASURED, {**GRU4REC_PLUS, **AT_MOST_1_500}),
    Preset(
        "fast",
        "synthetic",
        "caser",
        expect="NDCG@10 .53 on the validation item, .24 with its authors' three targets (measured).",
        takes="A minute on two cores.",
        settings={**CASER, **AT_MOST_1_500, "num_targets": 1},
    ),
    Preset("fast", "synthetic", "sasrec", NOT_MEASURED, NOT_MEASURED, {**SASREC, **AT_MOST_1_500}),
    Preset(
        "fast",
        "synthetic",
        "bert4rec",
        expect="At least 80 % of the generator's own NDCG@10.",
        takes="Two trainings of about 40 seconds on two cores.",
        settings=BERT4REC_SYNTHETIC,
    ),
    Preset("fast", "synthetic-orderless", "pop", NOT_MEASURED, NOT_MEASURED, {}),
    Preset("fast", "synthetic-orderless", "item_cooccurrence", NOT_MEASURED, NOT_MEASURED, {}),
    Preset("fast", "synthetic-orderless", "bpr_mf", NOT_MEASURED, NOT_MEASURED, {**BPR_MF, **AT_MOST_1_500}),
    Preset("fast", "synthetic-orderless", "ncf", NOT_MEASURED, NOT_MEASURED, {**NCF, **AT_MOST_1_500}),
    Preset("fast", "synthetic-orderless", "fpmc", NOT_MEASURED, NOT_MEASURED, {**FPMC, **AT_MOST_1_500}),
    Preset("fast", "synthetic-orderless", "gru4rec", NOT_MEASURED, NOT_MEASURED, {**GRU4REC, **AT_MOST_1_500}),
    Preset(
        "fast", "synthetic-orderless", "gru4rec_plus", NOT_MEASURED, NOT_MEASURED, {**GRU4REC_PLUS, **AT_MOST_1_500}
    ),
    Preset(
        "fast",
        "synthetic-orderless",
        "caser",
        expect=NO_ORDER,
        takes="A minute on two cores.",
        settings={**CASER, **AT_MOST_1_500, "num_targets": 1},
    ),
    Preset("fast", "synthetic-orderless", "sasrec", NOT_MEASURED, NOT_MEASURED, {**SASREC, **AT_MOST_1_500}),
    Preset(
        "fast",
        "synthetic-orderless",
        "bert4rec",
        expect=NO_ORDER,
        takes="Two trainings of about 40 seconds on two cores.",
        settings=BERT4REC_SYNTHETIC,
    ),
    # Beauty.
    Preset(
        "fast",
        "beauty",
        "pop",
        expect="NDCG@10 .030 on the test item (measured).",
        takes="Half a minute (measured).",
        settings={},
    ),
    Preset(
        "fast",
        "beauty",
        "item_cooccurrence",
        expect="NDCG@10 .173 on the test item (measured).",
        takes="A minute of one thread (measured).",
        settings={},
    ),
    Preset(
        "fast",
        "beauty",
        "bpr_mf",
        expect="NDCG@10 .137 on the test item (measured).",
        takes="14 minutes of one thread (measured).",
        settings={**BPR_MF, "protocol": "fixed", "steps": 40_000},
        search=AT_MOST_40_000,
    ),
    Preset(
        "fast",
        "beauty",
        "ncf",
        expect="NDCG@10 .103 on the test item (measured).",
        takes="18 minutes of one thread (measured).",
        settings={**NCF, "l2": 1e-3, "steps": 40_000, "evaluate_every": 2_000, "patience": 5},
    ),
    Preset(
        "fast",
        "beauty",
        "fpmc",
        expect="NDCG@10 .165 on the test item (measured).",
        takes="37 minutes of one thread (measured).",
        settings={**FPMC, **AT_MOST_40_000},
    ),
    Preset(
        "fast",
        "beauty",
        "gru4rec",
        expect=f"NDCG@10 .166 on the test item. {EQUAL_KERNELS}",
        takes="47 minutes of one thread beside other work (measured).",
        settings={**GRU4REC, "protocol": "fixed", "steps": 29_000},
        search=AT_MOST_40_000,
    ),
    Preset(
        "fast",
        "beauty",
        "gru4rec_plus",
        expect=f"NDCG@10 .197 on the test item. {EQUAL_KERNELS}",
        takes="24 minutes of one thread (measured).",
        settings={**GRU4REC_PLUS, "steps": 16_000, "evaluate_every": 1_000, "patience": 5},
    ),
    Preset(
        "fast",
        "beauty",
        "caser",
        expect="NDCG@10 .132 on the test item (measured).",
        takes="45 minutes of one thread beside other work (measured).",
        settings={**CASER, "protocol": "fixed", "steps": 39_000},
        search=AT_MOST_40_000,
    ),
    Preset(
        "fast",
        "beauty",
        "sasrec",
        expect="NDCG@10 .176 on the test item (measured).",
        takes="38 minutes of one thread beside other work (measured).",
        settings={**SASREC, "protocol": "fixed", "steps": 38_000},
        search=AT_MOST_40_000,
    ),
    Preset(
        "fast",
        "beauty",
        "bert4rec",
        expect="NDCG@10 .184 on the test item, .193 on the validation item when that is held out (measured).",
        takes="30 minutes on two cores beside other work, 44 minutes of processor time (measured).",
        settings={
            **BERT4REC,
            "max_length": 50,
            "mask_proportion": 0.6,
            "max_predictions": 30,
            "window_step": 0.1,
            "dropout": 0.5,
            "attention_dropout": 0.2,
            "batch_size": 64,
            "protocol": "fixed",
            "steps": 24_000,
            "evaluate_every": 2_000,
        },
    ),
    # Steam.
    Preset("fast", "steam", "pop", NOT_MEASURED, NOT_MEASURED, {}),
    Preset("fast", "steam", "item_cooccurrence", NOT_MEASURED, NOT_MEASURED, {}),
    Preset("fast", "steam", "bpr_mf", NOT_MEASURED, NOT_MEASURED, {**BPR_MF, **AT_MOST_40_000}),
    Preset("fast", "steam", "ncf", NOT_MEASURED, NOT_MEASURED, {**NCF, **AT_MOST_40_000}),
    Preset("fast", "steam", "fpmc", NOT_MEASURED, NOT_MEASURED, {**FPMC, **AT_MOST_40_000}),
    Preset("fast", "steam", "gru4rec", NOT_MEASURED, NOT_MEASURED, {**GRU4REC, **AT_MOST_40_000}),
    Preset("fast", "steam", "gru4rec_plus", NOT_MEASURED, NOT_MEASURED, {**GRU4REC_PLUS, **AT_MOST_40_000}),
    Preset("fast", "steam", "caser", NOT_MEASURED, NOT_MEASURED, {**CASER, **AT_MOST_40_000}),
    Preset("fast", "steam", "sasrec", NOT_MEASURED, NOT_MEASURED, {**SASREC, **AT_MOST_40_000}),
    Preset(
        "fast",
        "steam",
        "bert4rec",
        expect=NOT_MEASURED,
        takes="About 4 hours on two cores, estimated from the time of a step.",
        settings={
            **BERT4REC,
            "max_length": 50,
            "mask_proportion": 0.4,
            "max_predictions": 20,
            "window_step": 0.5,
            "dropout": 0.1,
            "attention_dropout": 0.1,
            "steps": 60_000,
        },
    ),
    # ML-1m. It has 47 batches of 128 histories, so 40,000 of them would be 850 epochs.
    Preset(
        "fast",
        "ml-1m",
        "pop",
        expect="NDCG@10 .064 on the test item (measured).",
        takes="10 seconds (measured).",
        settings={},
    ),
    Preset(
        "fast",
        "ml-1m",
        "item_cooccurrence",
        expect="NDCG@10 .375 on the test item (measured).",
        takes="20 seconds of one thread (measured).",
        settings={},
    ),
    Preset(
        "fast",
        "ml-1m",
        "bpr_mf",
        expect="NDCG@10 .263 on the test item (measured).",
        takes="2 minutes of one thread (measured).",
        settings={
            **BPR_MF,
            "negatives": "popular",
            "batch_size": 1_024,
            "learning_rate": 2e-3,
            "l2": 3e-3,
            "protocol": "fixed",
            "steps": 18_000,
        },
        search=AT_MOST_40_000,
    ),
    Preset(
        "fast",
        "ml-1m",
        "ncf",
        expect="NDCG@10 .178 on the test item (measured).",
        takes="4 minutes of one thread (measured).",
        settings={**NCF, "protocol": "fixed", "steps": 40_000},
        search=AT_MOST_40_000,
    ),
    Preset(
        "fast",
        "ml-1m",
        "fpmc",
        expect="NDCG@10 .353 on the test item (measured).",
        takes="17 minutes of one thread (measured).",
        settings={**FPMC, "steps": 80_000, "evaluate_every": 2_000, "patience": 5},
    ),
    Preset(
        "fast",
        "ml-1m",
        "gru4rec",
        expect=f"NDCG@10 .430 on the test item. {EQUAL_KERNELS}",
        takes="89 minutes of one thread beside other work (measured).",
        settings={**GRU4REC, "max_length": 200, "steps": 6_000, "evaluate_every": 250, "patience": 5},
    ),
    Preset(
        "fast",
        "ml-1m",
        "gru4rec_plus",
        expect=f"NDCG@10 .473 on the test item. {EQUAL_KERNELS}",
        takes="Two trainings of 37 minutes of one thread beside other work (the second measured).",
        settings={**GRU4REC_PLUS, "max_length": 200, "steps": 2_000, "evaluate_every": 100, "patience": 5},
    ),
    Preset(
        "fast",
        "ml-1m",
        "caser",
        expect="NDCG@10 .407 on the test item (measured).",
        takes="29 minutes of one thread beside other work (measured).",
        settings={**CASER, **AT_MOST_40_000},
    ),
    Preset(
        "fast",
        "ml-1m",
        "sasrec",
        expect="NDCG@10 .443 on the test item (measured on a file that orders equal times differently from the "
        "authors').",
        takes="107 minutes of one thread beside other work (measured).",
        settings={
            **SASREC,
            "max_length": 200,
            "dropout": 0.2,
            "steps": 12_000,
            "evaluate_every": 500,
            "patience": 5,
        },
    ),
    Preset(
        "fast",
        "ml-1m",
        "bert4rec",
        expect="NDCG@10 .482 on the test item (measured).",
        takes="74 minutes of one thread (measured); about 52 minutes on two cores, estimated from the time of a step.",
        settings={
            **BERT4REC,
            "max_length": 200,
            "mask_proportion": 0.4,
            "max_predictions": 80,
            "window_step": 0.5,
            "dropout": 0.0,
            "attention_dropout": 0.0,
            "batch_size": 32,
            "warmup_steps": 2_000,
            "protocol": "fixed",
            "steps": 48_000,
            "evaluate_every": 4_000,
        },
    ),
    # ML-20m.
    Preset("fast", "ml-20m", "pop", NOT_MEASURED, NOT_MEASURED, {}),
    Preset("fast", "ml-20m", "item_cooccurrence", NOT_MEASURED, NOT_MEASURED, {}),
    Preset("fast", "ml-20m", "bpr_mf", NOT_MEASURED, NOT_MEASURED, {**BPR_MF, **AT_MOST_40_000}),
    Preset("fast", "ml-20m", "ncf", NOT_MEASURED, NOT_MEASURED, {**NCF, **AT_MOST_40_000}),
    Preset("fast", "ml-20m", "fpmc", NOT_MEASURED, NOT_MEASURED, {**FPMC, **AT_MOST_40_000}),
    Preset("fast", "ml-20m", "gru4rec", NOT_MEASURED, NOT_MEASURED, {**GRU4REC, **AT_MOST_40_000, "max_length": 200}),
    Preset(
        "fast",
        "ml-20m",
        "gru4rec_plus",
        NOT_MEASURED,
        NOT_MEASURED,
        {**GRU4REC_PLUS, **AT_MOST_40_000, "max_length": 200},
    ),
    Preset("fast", "ml-20m", "caser", NOT_MEASURED, NOT_MEASURED, {**CASER, **AT_MOST_40_000}),
    Preset(
        "fast",
        "ml-20m",
        "sasrec",
        NOT_MEASURED,
        NOT_MEASURED,
        {**SASREC, **AT_MOST_40_000, "max_length": 200, "dropout": 0.2},
    ),
    Preset(
        "fast",
        "ml-20m",
        "bert4rec",
        expect=NOT_MEASURED,
        takes="About 8 hours on two cores, estimated from the time of a step.",
        settings={
            **BERT4REC,
            "max_length": 200,
            "mask_proportion": 0.2,
            "max_predictions": 20,
            "window_step": 0.5,
            "dropout": 0.1,
            "attention_dropout": 0.1,
            "steps": 80_000,
        },
    ),
    # Your own data. The settings of BERT4Rec go by their size (`own`); these are a shop's.
    Preset("fast", OWN, "pop", NO_ESTIMATE, "One pass over the data.", {}),
    Preset("fast", OWN, "item_cooccurrence", NO_ESTIMATE, "One pass over the data.", {}),
    Preset("fast", OWN, "bpr_mf", NO_ESTIMATE, TWO_TRAININGS, {**BPR_MF, **AT_MOST_10_000}),
    Preset("fast", OWN, "ncf", NO_ESTIMATE, TWO_TRAININGS, {**NCF, **AT_MOST_10_000}),
    Preset("fast", OWN, "fpmc", NO_ESTIMATE, TWO_TRAININGS, {**FPMC, **AT_MOST_10_000}),
    Preset("fast", OWN, "gru4rec", NO_ESTIMATE, TWO_TRAININGS, {**GRU4REC, **AT_MOST_10_000}),
    Preset("fast", OWN, "gru4rec_plus", NO_ESTIMATE, TWO_TRAININGS, {**GRU4REC_PLUS, **AT_MOST_10_000}),
    Preset("fast", OWN, "caser", NO_ESTIMATE, TWO_TRAININGS, {**CASER, **AT_MOST_10_000}),
    Preset("fast", OWN, "sasrec", NO_ESTIMATE, TWO_TRAININGS, {**SASREC, **AT_MOST_10_000}),
    Preset(
        "fast",
        OWN,
        "bert4rec",
        expect=NO_ESTIMATE,
        takes="At most fifteen passes over the data, then a second training for the selected number of steps.",
        settings=bert4rec_settings(Shop()),
    ),
]
