"""One run from start to end, comparisons of runs, and runs that start from others."""
