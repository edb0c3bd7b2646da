"""Whether figures may be compared: what was asked of each method, what really ran, and whether they say the same."""
