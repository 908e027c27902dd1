"""Core ops on strings, a room of the op table each."""
