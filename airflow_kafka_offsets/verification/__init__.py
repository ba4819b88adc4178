"""The proof that every record was loaded exactly once, or is recorded as lost."""
