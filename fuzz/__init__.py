"""Feeds damaged bytes to whatever reads bytes of others: `make fuzz`."""
