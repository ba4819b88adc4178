"""The user's database: transactions, errors and the clock. No tables."""
