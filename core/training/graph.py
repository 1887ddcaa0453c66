"""What a traced graph needs and does, read off its operations.

Two questions save work in every step. Which inputs does a result depend on at all? Another one need not be fed. And
are a look-up's ids only *moved* from input columns to their places? Then NumPy can pick them straight from the batch
and TensorFlow need not run for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# Operations that move values without looking at them; the second set only knows shapes.
_MOVING = {
    "Identity", "StridedSlice", "Squeeze", "ExpandDims", "Reshape", "Transpose", "ConcatV2", "Pack", "Unpack", "Split",
    "SplitV",
}  # fmt: skip
_CONSTANT = {"Const", "Shape"}
_DATA_INPUTS = {"ConcatV2": slice(0, -1), "Pack": slice(None), "Split": slice(1, None)}


def reached(tensors: Iterable[Any]) -> set[str]:
    """Names of all operations that `tensors` depend on, control inputs included."""
    names: set[str] = set()
    todo = [tensor.op for tensor in tensors]
    while todo:
        op = todo.pop()
        if op.name not in names:
            names.add(op.name)
            todo += [tensor.op for tensor in op.inputs]
            todo += list(op.control_inputs)
    return names


def only_moves(tensor: Any) -> bool:
    """Whether every value of `tensor` is some input's value at a place that does not depend on any value."""
    op = tensor.op
    if op.type == "Placeholder":
        return True
    if op.type not in _MOVING:
        return False
    inputs = list(op.inputs)
    data = set(range(len(inputs))[_DATA_INPUTS.get(op.type, slice(0, 1))])
    return all(only_moves(one) if place in data else _only_shapes(one) for place, one in enumerate(inputs))


def _only_shapes(tensor: Any) -> bool:
    op = tensor.op
    if op.type in _CONSTANT:
        return True
    return op.type in _MOVING and all(_only_shapes(one) for one in op.inputs)
