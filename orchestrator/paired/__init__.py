"""Two runs side by side: what changed, what is worse, and how sure that is."""
