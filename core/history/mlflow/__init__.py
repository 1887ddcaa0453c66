"""Past jobs in MLflow: the one place of the product that may import mlflow, and only inside of functions."""
