"""The paper's tables and figures: plans the runs, runs them, and writes the report."""
