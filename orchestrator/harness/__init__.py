"""Tasks of EleutherAI's lm-evaluation-harness on Airlock's workers."""
