"""Errors say field, value and remedy on one short line, and all hang on one root."""

import inspect

import pytest

from trimtab.core import errors
from trimtab.core.errors import BadInput, DataError, JobFailed, ModelError, TrimtabError


def test_every_error_is_a_trimtab_error():
    found = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]
    assert len(found) > 5
    assert all(issubclass(kind, TrimtabError) for kind in found)


@pytest.mark.parametrize("kind", [DataError, ModelError])
def test_data_and_model_errors_are_bad_input(kind):
    assert issubclass(kind, BadInput)
    assert not issubclass(JobFailed, BadInput)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"), (0.5, "0.5"), ("x", "'x'"), (None, "None"), ([1], "[1]"), ("", "''"), ("it's", "'it's'"),
        ("a\nb", r"'a\nb'"),
    ],
)  # fmt: skip
def test_the_message_is_field_value_remedy(value, shown):
    error = BadInput("--ps", value, "give a whole number of at least 1")
    assert str(error) == f"--ps: {shown}: give a whole number of at least 1"
    assert (error.field, error.value, error.remedy) == ("--ps", value, "give a whole number of at least 1")


def test_a_long_value_is_cut():
    message = str(BadInput("--columns", "x" * 5000, "give a path"))
    assert len(message) < 300
    assert "..." in message
