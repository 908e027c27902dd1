"""Core ops of classical models: rows of the op table, a file by subject."""
