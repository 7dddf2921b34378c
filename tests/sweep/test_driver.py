"""The driver's loop with an executor that publishes by hand: no training, every kind of outcome."""

import pytest
from made import NUMERICS, STEP, made_study, made_wsd, write_rows

from isotune.runs import Study
from isotune.sweep.claims import Claims
from isotune.sweep.driver import Driver, Limits
from isotune.sweep.outcomes import Outcome
from isotune.sweep.plan import make_plan
from isotune.train import Execution

RECIPES = [made_wsd(steps, decay_steps=5, learning_rate=lr) for lr in (2**-6, 2**-7) for steps in (20, 30, 40)]


class ByHand:
    """Ends every job at once, with the outcome that a function says."""

    def __init__(self, study, outcome_of=lambda job, number: Outcome("finished"), num_slots=2):
        self.study, self.outcome_of, self.num_slots = study, outcome_of, num_slots
        self.jobs, self.begun, self.killed = {}, [], []
        self.sentence = ""

    def num_free(self):
        return self.num_slots - len(self.jobs)

    def submit(self, key, job):
        assert job.segment.start_tokens == 0 or self.study.state_path(job.segment.start_state).exists()
        self.jobs[key] = job
        self.begun.append(job)

    def poll(self, seconds):
        ended = []
        for key, job in list(self.jobs.items()):
            outcome = self.outcome_of(job, sum(other.segment == job.segment for other in self.begun))
            if outcome is not None or key in self.killed:
                outcome = outcome or Outcome("crashed", "signal 9")
                self._carry_out(job, outcome)
                del self.jobs[key]
                ended.append((key, outcome))
        return ended

    def _carry_out(self, job, outcome):
        if outcome.kind in ("finished", "diverged"):
            publish(self.study, job.segment, outcome.kind)

    def kill(self, key):
        self.killed.append(key)

    def problem(self):
        return self.sentence

    def close(self):
        pass


def publish(study, segment, status="finished"):
    folder = study.new_attempt(segment, NUMERICS)
    at = None if status == "finished" else segment.start_tokens + STEP
    write_rows(folder, segment, through_tokens=None if at is None else segment.start_tokens)
    study.describe(folder, segment, NUMERICS, status, at)
    if at is None:
        place = study.state_path(segment.end_state)
        place.parent.mkdir(exist_ok=True)
        place.touch()
    study.publish(folder, segment.id)


@pytest.fixture
def study(tmp_path):
    return made_study(tmp_path / "study")


def drive(study, executor, recipes=RECIPES, clock=None, should_stop=lambda: False, **limits):
    claims = Claims(study.folder, **({"clock": clock} if clock else {}))
    plan = make_plan(recipes, Study.open(study.folder))
    driver = Driver(
        Study.open(study.folder),
        plan,
        executor,
        claims,
        Execution(),
        Limits(**limits),
        **({"clock": clock} if clock else {}),
    )
    result = driver.run(should_stop)
    claims.close()
    return plan, result


def test_everything_is_trained_once_in_an_order_that_works(study):
    executor = ByHand(study)
    plan, result = drive(study, executor)
    assert result.is_complete and result.states == {"done": len(plan.tasks)}
    assert sum(job.segment.tokens for job in executor.begun) == plan.price.to_train
    assert len({job.segment.id for job in executor.begun}) == len(executor.begun)
    assert not make_plan(RECIPES, Study.open(study.folder)).missing
    assert not list((study.folder / "claims").iterdir())


def test_trunks_are_worked_on_one_after_the_other(study):
    executor = ByHand(study, num_slots=1)
    drive(study, executor)
    rates = [job.segment.recipe.learning_rate for job in executor.begun]
    assert rates == sorted(rates, reverse=True), "the second trunk waits until the first one's decays are done"


def test_a_divergence_settles_everything_behind_it(study):
    def outcome(job, number):
        is_bad = job.segment.end_tokens == 25 * STEP and job.segment.recipe.learning_rate == 2**-6
        return Outcome("diverged" if is_bad else "finished")

    executor = ByHand(study, outcome)
    _, result = drive(study, executor)
    assert result.is_complete and result.states == {"done": 8, "diverged": 4}
    assert len(executor.begun) == 9


def test_a_failure_blocks_its_successors_and_nothing_else(study):
    def outcome(job, number):
        is_bad = job.segment.end_tokens == 25 * STEP and job.segment.recipe.learning_rate == 2**-6
        return Outcome("failed", "the disk is full: free some space") if is_bad else Outcome("finished")

    executor = ByHand(study, outcome)
    _, result = drive(study, executor)
    assert not result.is_complete and result.states == {"done": 8, "failed": 1, "blocked": 3}
    assert result.problems == (("LR 2^-6 WD 0.5 batch 4 seed 0, 960 to 1.6K", "the disk is full: free some space"),)
    assert len(executor.begun) == 9, "what would fail again is not tried again"


def test_a_crash_is_retried_within_limits(study):
    executor = ByHand(study, lambda job, number: Outcome("crashed", "killed") if number <= 2 else Outcome("finished"))
    _, result = drive(study, executor, retries=2)
    assert result.is_complete
    executor = ByHand(study, lambda job, number: Outcome("crashed", "killed"))
    _, result = drive(study, executor, [made_wsd(20, seed=1), made_wsd(20, seed=2)], retries=2)
    assert result.states == {"failed": 2, "blocked": 2}
    assert len(executor.begun) == 6


def test_a_hang_is_killed_and_said_so(study):
    now = [0.0]

    def clock():
        now[0] += 1.0
        return now[0]

    executor = ByHand(study, lambda job, number: None)
    _, result = drive(study, executor, [made_wsd(20)], clock=clock, hang_seconds=100, retries=0)
    assert len(executor.killed) == 1
    assert "no row for 100 seconds" in result.problems[0][1]


def test_what_another_driver_publishes_is_not_trained_here(study):
    others = Claims(study.folder)
    plan = make_plan(RECIPES, study)
    theirs = plan.missing[0].segment
    others.take(theirs.id)
    polls = []

    def outcome(job, number):
        polls.append(job)
        if len(polls) == 3 and not study.has(theirs.id):
            publish(study, theirs)
        return Outcome("finished")

    executor = ByHand(study, outcome, num_slots=1)
    _, result = drive(study, executor)
    assert result.is_complete
    assert theirs not in [job.segment for job in executor.begun]


def test_a_lost_race_is_counted_as_waste(study):
    def outcome(job, number):
        publish(study, job.segment)
        return Outcome("lost", trained_tokens=job.segment.tokens)

    executor = ByHand(study, outcome)
    plan, result = drive(study, executor)
    assert result.is_complete and result.wasted_tokens == plan.price.to_train


def test_a_claim_that_was_taken_over_stops_the_segment(study):
    executor = ByHand(study, lambda job, number: None, num_slots=1)
    seen = []

    def should_stop():
        for job in executor.jobs.values():
            first = study.folder / "claims" / f"{job.segment.id}.1"
            (study.folder / "claims" / f"{job.segment.id}.2").write_text("another driver")
            seen.append(first.with_name(first.name + ".stop").exists())
        return len(seen) > 3

    drive(study, executor, [made_wsd(20)], should_stop=should_stop, save_seconds=0.0)
    assert seen[0] is False and seen[-1] is True


def test_a_stop_leaves_the_rest_for_later(study):
    executor = ByHand(study)
    count = [0]

    def should_stop():
        count[0] += 1
        return count[0] > 2

    _, result = drive(study, executor, should_stop=should_stop)
    assert result.stopped and not result.is_complete and result.states["waiting"] > 0
    _, result = drive(study, ByHand(study))
    assert result.is_complete


def test_an_executor_that_cannot_run_anything_ends_the_sweep_in_words(study):
    executor = ByHand(study, num_slots=0)
    executor.sentence = "no worker can start"
    _, result = drive(study, executor)
    assert result.stopped == "no worker can start" and not result.is_complete


def test_every_outcome_is_in_the_journal(study):
    from isotune.sweep.plans import remember
    from isotune.sweep.status import sweep_status

    remember(study, RECIPES)
    executor = ByHand(study, lambda job, number: Outcome("failed", "bad luck", trained_tokens=64))
    drive(study, executor)
    status = sweep_status(Study.open(study.folder))
    assert len(status.failures) == 2 and status.failures[0][1] == "bad luck"
    assert status.segments["waiting"] == 12
    assert status.num_recipes == 6


def test_progress_counts_rows_of_running_segments(study):
    executor = ByHand(study, lambda job, number: None)
    plan = make_plan(RECIPES, study)
    claims = Claims(study.folder)
    driver = Driver(study, plan, executor, claims, Execution(), Limits())
    driver._begin_what_can()
    segment = plan.missing[0].segment
    folder = study.new_attempt(segment, NUMERICS)
    write_rows(folder, segment, through_tokens=6 * STEP)
    progress = driver.progress()
    assert progress.tokens_done == 6 * STEP and progress.tokens_total == plan.price.to_train
    assert progress.states == {"running": 2, "waiting": 10}
