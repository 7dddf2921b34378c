"""A model in a training loop."""

from docs_data import model_in_a_loop

model, optimizer = model_in_a_loop(monkeypatch)  # noqa: F821
