"""The command line: a file per command or two, which `main` runs."""
