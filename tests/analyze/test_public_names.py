"""What isotune.analyze offers, and what importing it does not cost."""

import json
import subprocess
import sys
import types

import pytest

import isotune.analyze

HEAVY = ("torch", "pandas", "pyarrow", "scipy.optimize", "scipy.stats")


@pytest.mark.parametrize("name", isotune.analyze.__all__)
def test_a_public_name_is_there_and_no_module(name):
    assert not isinstance(getattr(isotune.analyze, name), types.ModuleType)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'diagnosis_of_everything'"):
        isotune.analyze.diagnosis_of_everything  # noqa: B018


@pytest.mark.parametrize("statement", ["import isotune.analyze", "from isotune.analyze import *"])
def test_importing_takes_in_nothing_heavy(statement):
    code = f"import sys, json\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout)
    assert "isotune.analyze" in loaded
    assert not [name for name in HEAVY if name in loaded]
