"""What Airflow connections name, and Airflow's metrics."""
