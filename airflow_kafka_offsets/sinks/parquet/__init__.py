"""Directories of Parquet files with a manifest for each batch: the manifest is there, or the batch is not."""
