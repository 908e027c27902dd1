"""What ops of the standard domain mean for strings."""
