"""One adapter per engine. Their names end in `_backend`, so that none can hide an engine's own module."""
