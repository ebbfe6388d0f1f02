"""Evaluation: candidates, ranks, metrics and baselines."""
