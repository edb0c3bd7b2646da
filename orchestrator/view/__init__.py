"""What people look at: parts of `console` and `report`, and the commands that only list."""
