"""Values and decisions: ranges, positions, planning. Standard library only; nothing here reads or writes anything."""
