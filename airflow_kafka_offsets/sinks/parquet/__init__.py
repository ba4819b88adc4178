"""Plain Parquet files under names that never change."""
