"""A file of runs of somebody else's."""

from docs_data import write_runs_csv

write_runs_csv("runs.csv")
