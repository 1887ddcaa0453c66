"""Kubeflow Pipelines components: typed doors to the same job that the command line runs.

Nothing heavy is imported here: KFP loads this module to compile a pipeline, on machines without TensorFlow.
"""

if __name__ == "kfp_components":  # the checkout's root is on the path: a second copy of every class would come to life
    raise ImportError("import trimtab.kfp_components, not kfp_components")
