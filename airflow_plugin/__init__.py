"""The Airflow provider: operators, trigger, hook and views over the same job that the command line runs.

Every Airflow process imports this package, so it stays free of TensorFlow, MLflow, KFP and of Airflow itself.
"""

if __name__ == "airflow_plugin":  # the checkout's root is on the path: a second copy of every class would come to life
    raise ImportError("import trimtab.airflow_plugin, not airflow_plugin")
