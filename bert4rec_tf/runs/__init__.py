"""Runs: prepare, train, evaluate and export; work directories, warm starts, seeds and comparison."""
