"""The image in which components run on a cluster: one name, set once where pipelines are compiled.

A local run by `SubprocessRunner(use_venv=False)` does not look at it.
"""

import os

IMAGE = os.environ.get("TRIMTAB_KFP_IMAGE", "trimtab:0.1.0")
