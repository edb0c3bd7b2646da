"""Exit codes. 3, stopped early, stands beside the event that tells it (`events.EXIT_STOPPED_EARLY`)."""

EXIT_OK, EXIT_PARTIAL, EXIT_INPUT, EXIT_INTERRUPTED, EXIT_TERMINATED = 0, 1, 2, 130, 143
#: EX_SOFTWARE and EX_IOERR of sysexits.h
EXIT_FAULT, EXIT_OUTPUT = 70, 74
