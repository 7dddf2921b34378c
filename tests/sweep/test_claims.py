"""Claims: one driver for each segment, stale ones taken over, nobody else's touched."""

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from isotune.errors import InputError
from isotune.sweep.claims import BEAT_SECONDS, Claims, is_dead_here, read_driver


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def driver_elsewhere(folder, clock, **options):
    """A driver whose heartbeat says that it runs on another machine."""
    claims = Claims(folder, clock=clock, **options)
    rewrite(folder, claims, place="elsewhere")
    return claims


def rewrite(folder, claims, **changes):
    path = folder / "drivers" / f"{claims.driver}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_of_many_drivers_at_once_one_gets_the_claim(tmp_path):
    drivers = [Claims(tmp_path) for _ in range(16)]
    for segment in (f"segment{k}" for k in range(20)):
        got = []
        barrier = threading.Barrier(len(drivers))

        def ask(claims, segment=segment, got=got, barrier=barrier):
            barrier.wait()
            got.append(claims.take(segment))

        threads = [threading.Thread(target=ask, args=(claims,)) for claims in drivers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(claim is not None for claim in got) == 1


def test_a_released_claim_is_free_again(tmp_path):
    first, second = Claims(tmp_path), Claims(tmp_path)
    claim = first.take("s")
    assert second.take("s") is None
    first.release(claim)
    assert second.take("s") is not None


def test_a_driver_that_asks_twice_has_the_same_claim(tmp_path):
    claims = Claims(tmp_path)
    assert claims.take("s") == claims.take("s")


def test_a_silent_driver_elsewhere_is_stale_after_a_while_on_the_observers_clock(tmp_path, clock):
    silent = driver_elsewhere(tmp_path, clock)
    claim = silent.take("s")
    other = Claims(tmp_path, stale_seconds=60, clock=clock)
    assert other.take("s") is None
    clock.now += 59
    assert other.take("s") is None
    clock.now += 2
    taken = other.take("s")
    assert taken is not None and taken.generation == claim.generation + 1
    assert silent.is_taken_over(claim) and not other.is_taken_over(taken)


def test_a_heartbeat_keeps_a_claim(tmp_path, clock):
    alive = driver_elsewhere(tmp_path, clock)
    alive.take("s")
    other = Claims(tmp_path, stale_seconds=60, clock=clock)
    for beat in range(2, 40):
        clock.now += 5
        rewrite(tmp_path, alive, beat=beat)
        assert other.take("s") is None


def test_a_driver_on_this_machine_that_died_is_stale_at_once(tmp_path):
    code = (
        "import sys, os; from pathlib import Path; from isotune.sweep.claims import Claims\n"
        "assert Claims(Path(sys.argv[1])).take('s'); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)])
    assert Claims(tmp_path).take("s") is not None


def test_another_process_with_the_number_of_a_dead_driver_does_not_revive_it(tmp_path):
    claims = Claims(tmp_path)
    about = read_driver(tmp_path / "drivers" / f"{claims.driver}.json")
    assert not is_dead_here(about)
    assert is_dead_here(about | {"process_start": "1"})
    assert is_dead_here(about | {"pid": 2**22 - 1})
    assert not is_dead_here(about | {"pid": 2**22 - 1, "place": "elsewhere"}), "its process cannot be seen from here"


def test_a_woken_driver_does_not_take_away_the_claim_that_was_taken_over(tmp_path, clock):
    sleeper = driver_elsewhere(tmp_path, clock)
    claim = sleeper.take("s")
    other = Claims(tmp_path, stale_seconds=10, clock=clock)
    other.take("s")
    clock.now += 11
    taken = other.take("s")
    sleeper.release(claim)
    third = Claims(tmp_path, clock=clock)
    assert taken.path.exists() and third.take("s") is None


def test_a_patience_shorter_than_a_heartbeat_is_refused(tmp_path):
    with pytest.raises(InputError, match="use at least 10"):
        Claims(tmp_path, stale_seconds=5)


def test_a_full_disk_leaves_no_piece_of_a_claim(tmp_path, monkeypatch):
    claims = Claims(tmp_path)

    def full(path, content):
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        claims.take("s")
    assert list((tmp_path / "claims").iterdir()) == []


def test_beats_are_written_now_and_then(tmp_path, clock):
    claims = Claims(tmp_path, clock=clock)
    path = tmp_path / "drivers" / f"{claims.driver}.json"
    first = path.read_bytes()
    claims.beat()
    assert path.read_bytes() == first
    clock.now += BEAT_SECONDS
    claims.beat()
    assert path.read_bytes() != first


def test_closing_leaves_nothing_behind(tmp_path):
    claims = Claims(tmp_path)
    claims.take("s").stop_file.touch()
    claims.close()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_stop_file_is_no_claim(tmp_path):
    first, second = Claims(tmp_path), Claims(tmp_path)
    claim = first.take("s")
    claim.stop_file.touch()
    os.unlink(claim.path)
    assert second.take("s").generation == 1
