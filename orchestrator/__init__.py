"""The coordinator: plans a sweep, owns the worker processes, journals what they give back."""

__version__ = "0.1.0"
