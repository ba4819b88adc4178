"""Positions that are moved on purpose: previewed, executed in one transaction, recorded in the history, and undone.

`previewing.preview_rewind` finds out what a scenario would do, `decision.decide` turns it into offsets, and
`execution.execute_rewind` executes it. An undo is a scenario as any other.
"""
