"""Runs in a file, in a folder of files and in TensorBoard's logs, and their settings."""

from docs_data import write_curves, write_runs_csv, write_settings_csv, write_tensorboard

write_runs_csv("runs.csv")
write_curves("curves")
write_settings_csv("settings.csv")
write_tensorboard("logs")
