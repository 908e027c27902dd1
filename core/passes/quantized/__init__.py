"""Passes that compute with the integers of quantised models."""
