"""Past jobs: a `History` protocol and its stores (in memory, MLflow), and what keeps a store from hurting a job.

What a finished job leaves here is what the next job's warm start reads. It knows `domain` records only: no controller,
no live job. MLflow is imported in `history.mlflow` alone, and there only when a store is opened.
"""
