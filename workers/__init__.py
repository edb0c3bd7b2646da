"""What runs inside an engine's own interpreter. Started by `bootstrap.py`, by path; never installed there.

Python 3.10 syntax; imports the standard library, psutil and `protocol`. An
engine is imported only inside functions of its own backend.
"""
