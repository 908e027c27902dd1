"""Core ops on strings: rows of the op table, a file by subject."""
