"""What the sinks of tables made of files share: columns, rows read back, and rows that are taken back."""
