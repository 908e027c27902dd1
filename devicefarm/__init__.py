"""A bundle and a device in, a RunReport out: transports, the runner's protocol, measuring, verdicts."""
