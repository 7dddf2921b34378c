"""Tests of experiments import its modules by their names, as its scripts do."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
