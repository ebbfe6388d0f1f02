"""Evaluation: candidates, ranks, metrics, and the baselines beside them."""
