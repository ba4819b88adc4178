"""The files between staging and commit: directory, manifest, rows and dead letters."""
