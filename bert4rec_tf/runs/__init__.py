"""Runs: prepare, train, evaluate and export; work directories, warm starts and comparison."""
