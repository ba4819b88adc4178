"""The user's database as such: transactions that are repeated or looked up, errors, the clock. Knows no table."""
