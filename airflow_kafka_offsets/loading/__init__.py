"""Plan the range, stage it on Spark, commit it in one transaction."""
