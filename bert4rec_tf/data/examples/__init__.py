"""Training examples: Cloze windows and masks in TFRecord shards, and those of the other models in memory."""
