"""Tests of Iceberg tables."""
