"""Values and decisions: positions, ranges, and the plan of a batch (`planning`).

Standard library only. Nothing here reads or writes anything: what needs a cluster or a database belongs in `kafka` or
`ledger`.
"""
