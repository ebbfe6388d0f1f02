"""Training examples: BERT4Rec's masked windows in TFRecord shards, the other models' examples in memory."""
