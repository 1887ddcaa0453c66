"""The one room that knows TensorFlow and Keras: models, elastic embeddings, the training step, the worker.

Its modules are imported only by worker and probe processes (`probe_client` excepted, which imports no TensorFlow), so
that the command line and the controller stay light and a user's code can never take them down.
"""
