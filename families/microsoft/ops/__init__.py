"""Core ops of com.microsoft's rare ops: rows of the op table, a file by subject."""
