"""Results as one HTML page each, with nothing outside of it: no script, no file, no address is loaded."""
