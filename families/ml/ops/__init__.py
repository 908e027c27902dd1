"""Core ops of classical models, a room of the op table each."""
