"""The Spark application: ranges to staged files. It travels to the executors, and knows neither Airflow nor SQLAlchemy."""
