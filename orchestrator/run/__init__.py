"""The parts of a run: one incarnation, the course of its points, the proof of its end."""
