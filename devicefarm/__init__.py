"""Bundle + device -> RunReport: transports, the runner's protocol, measuring and verdicts."""
