"""The dashboard: runs, plots, logs and metrics over HTTP. It only reads."""
