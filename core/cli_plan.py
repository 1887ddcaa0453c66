"""`trimtab plan`: what a job would be given and what that would bring, as a table, a picture or JSON.

It takes all that `trimtab train` takes, so that a person adds or removes one word. Nothing is started and nothing is
written but the converted rows in the cache, and the picture where one is asked for.
"""

from __future__ import annotations

import difflib
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.core.cli_display import TrainDisplay, say
from trimtab.core.domain.job import JobSpec
from trimtab.core.domain.quantities import parse_cpu
from trimtab.core.errors import BadInput

if TYPE_CHECKING:
    from trimtab.core.optimizer.outlook import Preview, WhatIf

_FIELD = "--what-if"
_NAMES = ("workers", "ps", "worker_cpu", "ps_cpu", "batch_size")
_FORM = "such as workers=8,ps=2,worker_cpu=1,ps_cpu=0.5"
_ENDINGS = (".png", ".svg")


def run(spec: JobSpec, what_ifs: Sequence[str], picture: str | None, *, as_json: bool) -> int:
    """Show on stdout what `spec` would start with; returns the exit code.

    Args:
        spec: the job. what_ifs: plans that are asked about, as typed.
        picture: where the front is drawn, None: nowhere. as_json: one JSON object instead of text.

    Raises:
        TrimtabError: bad input, or a job that could not be looked at.
    """
    wishes = [parse_what_if(text) for text in what_ifs]
    if picture is not None and Path(picture).suffix.lower() not in _ENDINGS:
        raise BadInput("--picture", picture, f"give a file that ends in {' or '.join(_ENDINGS)}")

    from trimtab.core.controller.previewing import preview_job
    from trimtab.core.controller.result import warm_start_dict
    from trimtab.core.controller.signals import stops_in_order
    from trimtab.core.report.front import preview_dict, preview_text

    stop = threading.Event()
    display = TrainDisplay()
    with display, stops_in_order(stop, lambda: False, always=True):
        display.show("reading rows and model", now=True)
        found = preview_job(spec, wishes, display.progress, stop=stop)
    if picture is not None:
        _draw(found.preview, Path(picture))
    if as_json:
        warm = warm_start_dict(found.warm)
        answer = preview_dict(found.preview, warm, found.batches) | {"picture": picture, "bad_input": None}
        say(json.dumps(answer, allow_nan=False))
    else:
        say(preview_text(found.preview, found.warm, found.batches))
    return 0


def parse_what_if(text: str) -> WhatIf:
    """The plan that a text such as 'workers=8,ps=2,worker_cpu=1' asks about.

    Raises:
        BadInput: an unknown name, one that is given twice, or a value that can't be.
    """
    from trimtab.core.optimizer.outlook import WhatIf

    numbers: dict[str, int] = {}
    cores: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (one.strip() for one in part.partition("="))
        name = name.lower().replace("-", "_")
        if name not in _NAMES:
            near = difflib.get_close_matches(name, _NAMES, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"give {', '.join(_NAMES)}, {_FORM}"
            raise BadInput(_FIELD, part.strip(), f"there is no such name; {hint}")
        if name in numbers or name in cores:
            raise BadInput(_FIELD, text, f"{name} is given twice; give each name once")
        if not equals or not value:
            raise BadInput(_FIELD, part.strip(), f"give a value, {_FORM}")
        if name.endswith("_cpu"):
            cores[name] = parse_cpu(value, f"{_FIELD} {name}")
            continue
        if not (value.isascii() and value.isdigit() and len(value) < 10 and int(value) > 0):
            raise BadInput(f"{_FIELD} {name}", value, "give a whole number from 1 to 999999999")
        numbers[name] = int(value)
    return WhatIf(
        numbers.get("workers"), numbers.get("ps"), cores.get("worker_cpu"), cores.get("ps_cpu"),
        numbers.get("batch_size"),
    )  # fmt: skip


def _draw(preview: Preview, path: Path) -> None:
    from trimtab.core.report.front_picture import write_front

    try:
        write_front(preview, path)
    except OSError as error:
        raise BadInput("--picture", str(path), f"cannot be written ({error.strerror or error})") from error
    say(f"picture: {path}", err=True)
