"""Core ops of com.microsoft's rare ops, a room of the op table each."""
