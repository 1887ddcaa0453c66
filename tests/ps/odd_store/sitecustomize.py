"""Makes odd:// known to every Python process that finds this folder on PYTHONPATH, the pods of a job included."""

import odd_store

odd_store.register()
