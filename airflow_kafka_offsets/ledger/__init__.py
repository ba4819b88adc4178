"""The state tables: groups, claims, batches, positions, and the transaction that commits a batch."""
