"""What all tests share: one thread per process, a server of forks, and a run that fails on a skip where nothing may be
skipped.

A test of data that the repository does not hold may be skipped everywhere: its reason begins with ALLOWED_SKIP.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, here and in every subprocess
# Without AMX: some virtual machines announce it and do not have it, and bfloat16 then ends in an illegal instruction.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import pytest
from command_forks import Commands

ALLOWED_SKIP = "data from elsewhere: "

# The files that take longest begin, so that no worker of `make test` waits at the end for another one's.
LONGEST = (
    "sweep/test_ray.py",
    "cli/test_tune.py",
    "test_examples.py",
    "sweep/test_outcomes.py",
    "integrations/test_ray_searcher.py",
    "docs/test_code_blocks.py",
    "cli/test_train.py",
    "cli/test_sweep.py",
    "cli/test_tune_kills.py",
    "sweep/test_sweep_kills.py",
    "report/test_page_in_browser.py",
    "train/test_sharing.py",
    "measure/test_parallel.py",
)

_skipped = []


def pytest_collection_modifyitems(config, items):
    order = {config.rootpath / "tests" / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


@pytest.fixture(scope="session")
def commands():
    server = Commands()
    yield server
    server.close()


def pytest_runtest_logreport(report):
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        if not reason.removeprefix("Skipped: ").startswith(ALLOWED_SKIP):
            _skipped.append(f"{report.nodeid}: {reason}")


def pytest_sessionfinish(session):
    # Where a compiler and a browser are installed, a skipped test is one that would have found something.
    if os.environ.get("ISOTUNE_NO_SKIPS") and _skipped and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    if os.environ.get("ISOTUNE_NO_SKIPS") and _skipped:
        terminalreporter.section("skipped, though ISOTUNE_NO_SKIPS is set: this run fails")
        for line in _skipped:
            terminalreporter.write_line(line)
