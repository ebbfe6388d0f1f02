"""From files to training batches: sequences, sources, reading, examples."""
