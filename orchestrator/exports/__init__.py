"""Records and figures for other programs."""
