"""What tests with the odd store share: making it known here and in every process that is started."""

import json
import os
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "odd_store"


class Store:
    """An odd store below one folder.

    Attributes:
        url: of its bucket. folder: where that really lies.
    """

    def __init__(self, base):
        self.folder, self.url = base / "store" / "bucket", "odd://bucket"
        self.folder.mkdir(parents=True)
        self._faults = base / "faults.json"

    def faults(self, **which):
        """Have this fault, instead of those before; nothing named: none."""
        self._faults.write_text(json.dumps(which))


def odd_store(base, monkeypatch):
    """A new store below `base`, known to this process and those that it starts."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")]))
    store = Store(base)
    monkeypatch.setenv("ODD_STORE", str(store.folder.parent))
    sys.modules.get("odd_store") or __import__("odd_store")
    sys.modules["odd_store"].register()
    return store
