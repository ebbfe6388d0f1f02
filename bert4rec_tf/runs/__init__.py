"""A run from start to end: prepare, train, evaluate, export; its folder; warm starts, seeds, comparison."""
