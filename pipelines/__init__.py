"""Ready-made Kubeflow pipelines and Airflow DAGs that read like recipes.

It composes `kfp_components` and `airflow_plugin` and adds no logic of its own.
"""

if __name__ == "pipelines":  # the checkout's root is on the path: a second copy of every class would come to life
    raise ImportError("import trimtab.pipelines, not pipelines")
