"""Tests of benchmarks/tuners import its modules by their names, as its script does."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "tuners"))
