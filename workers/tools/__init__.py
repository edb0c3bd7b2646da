"""Short jobs that need an engine's interpreter: `bootstrap.py tool NAME REQUEST.json RESPONSE.json`.

A tool is a module here with `def run(request: dict[str, Any]) -> dict[str, Any]`; see `runner`.
"""
