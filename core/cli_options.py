"""Options that several commands share, refused in the product's words instead of click's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from trimtab.core.errors import BadInput


def whole(
    name: str, least: int, text: str, default: str | None = None, *, required: bool = False, short: str | None = None
) -> Callable[[Any], Any]:
    """An option that takes a whole number of at least `least`."""

    def read(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least:
            raise BadInput(name, value, f"give a whole number of at least {least}")
        return number

    # An explicit default of None would count as a value, and nothing would be required any more.
    shown: dict[str, Any] = {} if default is None else {"default": default, "show_default": True}
    names = (name,) if short is None else (short, name)
    return click.option(*names, type=str, metavar="N", required=required, callback=read, help=text, **shown)
