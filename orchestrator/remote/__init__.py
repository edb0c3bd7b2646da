"""Workers on machines of a cluster: an outpost on each works off one worker start at a time, and tells all it does."""
