"""One small corpus for all tests of sweeps."""

import pytest
from small import write_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "tokens")
