"""The rooms of trimtab, by floors: docs/design.md says what each knows and may import.

Install the distribution and import `trimtab.core`; the folder is no package of its own.
"""

if __name__ == "core":  # the checkout's root is on the path: a second copy of every class would come to life
    raise ImportError("import trimtab.core, not core")
