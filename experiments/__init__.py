"""The paper's tables and figures: what to run, running it, and the report."""
