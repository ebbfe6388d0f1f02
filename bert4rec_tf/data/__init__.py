"""From files to batches: readers, data sets, training examples and their TFRecords."""
