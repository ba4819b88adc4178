"""Positions that are moved on purpose: previewed, executed in one transaction, recorded in the history, and undone.

`previewing.preview_rewind` previews a scenario, `preview.decide` turns it into offsets, and `execution.execute_rewind`
executes it. An undo is a scenario like any other.
"""
