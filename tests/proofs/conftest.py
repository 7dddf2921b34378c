"""Tests of proofs import them by their names, as scripts do."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "proofs"))
