"""How far a group is behind, and when to act."""
