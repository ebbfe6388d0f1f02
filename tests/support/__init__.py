"""Helpers of several test files."""
