"""The subcommands of the bert4rec command, one module each."""
