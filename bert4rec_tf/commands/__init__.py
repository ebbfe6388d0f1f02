"""What the `bert4rec` command can do: a module for each, whose `main` takes the rest of the command line."""
