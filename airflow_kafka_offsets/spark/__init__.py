"""The Spark application, from a job to staged files. Executors import it: it knows neither Airflow nor SQLAlchemy."""
