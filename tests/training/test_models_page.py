"""The page about models: its example runs as it stands, and trains."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

from training_world import COLUMNS, TinyPs, make_batch

from trimtab.core.domain.job import BUILT_IN_MODELS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "models.md").read_text("utf-8")


def test_the_example_trains(keras, make_step, spec, tmp_path, monkeypatch):
    from trimtab.core.training.load import load_model

    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "my_models.py").write_text(example)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (name,) = re.findall(r"--model (my_models:\w+)", PAGE)
    step, ps = make_step(load_model(name, COLUMNS, replace(spec, model=name)))
    assert {table.name for table in ps.elastic.tables} == {"users", "items", "words", "dense"}
    ps = TinyPs(ps.elastic)
    batch = make_batch(8)
    losses = [ps.train(step, batch, step.learning_rate(number)) for number in range(20)]
    assert losses[-1] < 0.8 * losses[0]


def test_every_built_in_model_is_on_the_page():
    assert [name for name in BUILT_IN_MODELS if f"`{name}`" not in PAGE] == []
