"""What the person at a terminal sees: a live view, lines, JSON lines; of one's own run or of another's."""
