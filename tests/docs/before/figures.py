"""The page's Python draws every figure of a table: of a small source here."""

from docs_data import small_sources, write_runs_csv

write_runs_csv("runs.csv")
small_sources(monkeypatch)  # noqa: F821
