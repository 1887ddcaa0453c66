"""Past jobs: a `History` protocol and its stores (in memory; MLflow to come).

What a finished job leaves here is what the next job's warm start reads. It knows `domain` records only: no controller,
no live job, and the one future module that may import mlflow.
"""
