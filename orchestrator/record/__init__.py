"""The run directory on the disk: parts of `journal`."""
