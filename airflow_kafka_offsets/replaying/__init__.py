"""Replays: a bounded range is loaded again, or into another table, and the positions of the group do not move."""
