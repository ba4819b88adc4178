"""Dead letters after their batch: look at them, put them through the pipeline again, drop what they hold.

A replayed record belongs to the batch that set it aside, as if it had never been bad: its rows have that batch's
number, and the history of the batch has the new counts. So `verify` proves the same as before, and rewinds and replays
find the rows.
"""
