"""How a command can end -> its exit code."""

OK, FAILED, USAGE, UNSUPPORTED, NO_DEVICE, INCONCLUSIVE, INFRA = range(7)
INTERNAL, CANCELLED = 70, 130
