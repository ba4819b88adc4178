"""Dead letters after their batch: look at them, put them through the pipeline again, drop what they hold.

A replay has a batch of its own, whose number its rows have. The history says how many dead letters the earlier batch
has lost to it, so that `verify` proves both, and rewinds and later replays find the rows.
"""
