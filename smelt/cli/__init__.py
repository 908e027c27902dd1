"""The command line: one file per command or two, tied together by main."""
