"""From files of interactions to one table, and from that to Sequences."""
