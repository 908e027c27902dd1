"""The rows of the op table, a file by subject."""
