"""What the user asked for, taken apart: parts of `config`, `methods` and `plan`."""
