"""The front door: what a user imports."""
