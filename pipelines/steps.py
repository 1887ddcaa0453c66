"""A recipe as data: named steps and what each waits for.

A Kubeflow pipeline and an Airflow DAG that do the same should be one recipe rendered twice, not two files that drift
apart. This is the part both share; the recipes themselves come with the components they call.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from trimtab.core.errors import BadInput


@dataclass(frozen=True)
class Step:
    """One step of a recipe and the names of the steps it waits for."""

    name: str
    after: tuple[str, ...] = ()


def in_order(steps: Iterable[Step]) -> tuple[Step, ...]:
    """The steps so that each stands behind those it waits for; otherwise in the order given.

    Raises:
        BadInput: a name is used twice, a step waits for one that is not there, or steps wait for each other.
    """
    by_name: dict[str, Step] = {}
    for step in steps:
        if step.name in by_name:
            raise BadInput("step", step.name, "name each step differently")
        by_name[step.name] = step
    for step in by_name.values():
        for needed in step.after:
            if needed not in by_name:
                raise BadInput(f"step {step.name}, after", needed, f"name one of: {', '.join(by_name)}")
    sorter = TopologicalSorter({step.name: step.after for step in by_name.values()})
    try:
        sorter.prepare()
    except CycleError as error:
        raise BadInput("steps", " → ".join(error.args[1]), "let no step wait for itself") from None
    place = {name: at for at, name in enumerate(by_name)}
    found: list[Step] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=place.__getitem__)
        found += [by_name[name] for name in ready]
        sorter.done(*ready)
    return tuple(found)
