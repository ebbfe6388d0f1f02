"""From files of interactions to one table, and from the table to Sequences."""
