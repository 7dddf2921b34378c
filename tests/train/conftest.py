"""One small corpus for all tests of training, and one server of forks for each file."""

import pytest
from forks import Forks
from small import write_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "tokens")


@pytest.fixture(scope="module")
def forks():
    server = Forks()
    yield server
    server.close()
