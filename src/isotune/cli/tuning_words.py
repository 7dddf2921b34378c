"""What a person reads of a tuning: its price, its rounds, its result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from isotune.analyze.advice import paste_in
from isotune.analyze.truth import smooth_surface
from isotune.cli.terminal import format_seconds
from isotune.recipe import format_number, format_tokens, parse_tokens

if TYPE_CHECKING:
    from isotune.objectives.table import TableObjective
    from isotune.sweep.driver import Progress
    from isotune.tune import Answer, Goal, Limits, Recommendation, Round, Tuned

DEFAULT_RUNS = 8  # the price limit, in runs of the full budget
SMALL_MEMORY = 0.1  # n below which WD has hardly acted
MAX_GROUPS = 4  # learning rates of the flat set that are listed
MAX_LISTED = 3  # questions of a round that could be asked next
SCATTER = 0.003  # of a loss over seeds, relative, where a table has one seed


def price_words(name: str, goal: Goal, limits: Limits, seconds_per_token: float | None, spent: int) -> str:
    """What it may cost, before it begins."""
    from isotune.tune.loop import grid_size

    num_runs = grid_size(goal.space)
    grid = num_runs * goal.tokens
    words = [f"Tuning LR and WD of {name} for {format_tokens(goal.tokens)} tokens, {len(goal.space.cells)} settings."]
    if limits.max_tokens is not None:
        most = limits.max_tokens
        time = "" if seconds_per_token is None else f", about {format_seconds(most * seconds_per_token)} here"
        there = f" ({format_tokens(spent)} of them are there)" if spent else ""
        words.append(
            f"It trains at most {format_tokens(most)} tokens{there}{time}: {_percent(most / grid)} of a grid of "
            f"{num_runs} runs, {format_tokens(grid)}."
        )
    words.append(f"It ends as soon as the expected regret is below {_percent(goal.tolerance)}.")
    return "\n".join(words)


def round_words(asked: Round, goal: Goal, limits: Limits) -> str:
    """A round that begins: what is known, and what is asked why."""
    best = asked.suggestion.recommendation
    lines = [f"Round {asked.number}: nothing is known yet"]
    if asked.spent_tokens:
        of = "" if limits.max_tokens is None else f" of {format_tokens(limits.max_tokens)}"
        settings = _settings(best.learning_rate, best.weight_decay)
        known = f"best so far {settings}, expected regret {_percent(best.regret)}"
        known = known if asked.num_finished else "no run has finished yet"
        lines = [f"Round {asked.number}: {known}; {format_tokens(asked.spent_tokens)}{of} tokens trained"]
    for question, reason, price in zip(asked.suggestion.questions, asked.suggestion.reasons, asked.prices, strict=True):
        settings = _settings(question.learning_rate, question.weight_decay)
        settings += f", seed {question.seed}" if question.seed != goal.seeds[0] else ""
        length = f"{format_tokens(question.tokens)} tokens"
        paid = "" if price == question.tokens else f", {format_tokens(price)} of them new"
        lines.append(f"  {settings}, {length}{paid}: {reason}")
    return "\n".join(lines)


def progress_words(progress: Progress) -> str:
    """A moment of a round."""
    done, total = format_tokens(progress.tokens_done), format_tokens(progress.tokens_total)
    left = "" if progress.seconds_left is None else f", {format_seconds(progress.seconds_left)} left"
    return f"  {done} of {total} tokens, {format_tokens(progress.tokens_per_second)} a second{left}"


def result_words(
    tuned: Tuned, goal: Goal, limits: Limits, answers: Sequence[Answer], again: str, next_steps: Sequence[str]
) -> str:
    """The recommendation, how sure it is, what it cost, and what comes next."""
    best = tuned.recommendation
    lines = [
        click.style(_settings(best.learning_rate, best.weight_decay), bold=True)
        + f" for {format_tokens(goal.tokens)} tokens",
        *_facts_of(best, goal),
        *(_line("warning", words) for words in _warnings(tuned, goal, answers)),
        _line("evidence", _evidence(answers, goal)),
        *_failed(tuned, answers),
        _line("trained", _trained(tuned, goal)),
        _line("ended", _ended(tuned, goal, limits)),
        *_more(tuned, goal, limits, again),
    ]
    exact = {"{lr}": repr(best.learning_rate), "{wd}": repr(best.weight_decay)}  # a rounded LR would be another run
    steps = [step.replace("{lr}", exact["{lr}"]).replace("{wd}", exact["{wd}"]) for step in next_steps]
    return "\n".join([*lines, "next", *(f"  {step}" for step in (*steps, *_pasted(best)))])


def result_facts(tuned: Tuned, goal: Goal, answers: Sequence[Answer]) -> dict[str, Any]:
    """The same as data."""
    best = tuned.recommendation
    return {
        "result": {name: value for name, value in vars(tuned).items() if name != "last_failure"}
        | {"recommendation": best, "weight_decay_convention": "coupled"},
        "n": None if goal.tokens_per_step is None else _memory(best, goal),
        "warnings": _warnings(tuned, goal, answers),
        "evidence": _counts(answers, goal),
        "failed": {
            "runs": len(tuned.unanswered),
            "given_up_from_learning_rate": _given_up(tuned, answers),
            "given_up_ends": _failing_sides(tuned, answers),
        },
    }


def all_diverged_words(tuned: Tuned, answers: Sequence[Answer]) -> str:
    """What to say where nothing can be recommended."""
    lowest = format_number(min(answer.question.learning_rate for answer in answers))
    which = "the only run" if len(answers) == 1 else f"all {len(answers)} runs"
    more = "" if tuned.stopped == "all diverged" else ", or allow more runs (--max-tokens, --max-hours)"
    return f"{which} diverged, down to LR {lowest}: lower --lr{more}"


def table_facts(table: TableObjective, tuned: Tuned, goal: Goal) -> dict[str, Any]:
    """How good a replay's recommendation is by the table itself."""
    losses = {cell: loss for cell, loss in table.losses(goal.tokens).items() if math.isfinite(loss)}
    cells, values = list(losses), np.array(list(losses.values()))
    scatter = table.seed_scatter(goal.tokens)
    log2_lr, log2_wd = np.log2(np.array(cells)).T
    errors = (SCATTER if scatter is None else scatter) * values
    smooth = smooth_surface(log2_lr, log2_wd, values, errors).truth(values)
    best = tuned.recommendation
    chosen = (best.learning_rate, best.weight_decay)
    place, lowest = cells.index(chosen) if chosen in losses else None, int(np.argmin(values))
    return {
        "loss": None if place is None else float(values[place]),
        "lowest_loss": float(values[lowest]),
        "lowest_at": {"learning_rate": cells[lowest][0], "weight_decay": cells[lowest][1]},
        "regret": None if place is None else float(values[place] / values[lowest] - 1),
        "smooth_regret": None if place is None else float(smooth[place] / smooth.min() - 1),
        "seed_scatter": scatter,
    }


def table_words(table: TableObjective, tuned: Tuned, goal: Goal) -> str:
    facts = table_facts(table, tuned, goal)
    if facts["loss"] is None:
        return f"in {table.table.folder}, seed {table.seed}, this setting diverged"
    lowest = _settings(facts["lowest_at"]["learning_rate"], facts["lowest_at"]["weight_decay"])
    seeds = "" if facts["seed_scatter"] is None else f"; another seed moves a loss by {_percent(facts['seed_scatter'])}"
    return "\n".join(
        [
            f"in {table.table.folder}, seed {table.seed}",
            _line("this setting", f"{facts['loss']:.4f}, {_percent(facts['regret'])} above the lowest loss"),
            _line("lowest", f"{facts['lowest_loss']:.4f} at {lowest}{seeds}"),
            _line("regret", f"{_percent(facts['smooth_regret'])} on the smooth surface through all its losses"),
        ]
    )


# Parts of the result


def _facts_of(best: Recommendation, goal: Goal) -> list[str]:
    low, high = best.loss_interval
    chance = f"probability {_percent(best.level)}"
    lines = [
        _line("loss", f"{best.loss:.4f} expected, {low:.4f} to {high:.4f} with {chance}"),
        _line(
            "regret",
            f"{_percent(best.regret)} expected, at most {_percent(best.regret_bound)} with {chance}",
        ),
    ]
    if best.as_good:
        lines.append(_line("as good", f"within {_percent(goal.tolerance)} as far as is known: {_flat_set(best)}"))
    if math.isfinite(best.invariance_weight):
        n = _memory(best, goal)
        may_be_lower = n < SMALL_MEMORY and best.invariance_weight > 0.5 and _lower_is_as_good(best, goal)
        small = ": so little that WD hardly acts, and a lower one would do as well" if may_be_lower else ""
        lines.append(_line("n", f"{n:.2g} at the end{small}"))
        lines.append(
            _line("invariance", f"that WD matters through n alone has probability {_percent(best.invariance_weight)}")
        )
    return lines


def _lower_is_as_good(best: Recommendation, goal: Goal) -> bool:
    """Whether a lower WD is, or none was considered."""
    is_lowest = math.log2(best.weight_decay) < float(goal.space.cells[:, 1].min()) + 1e-6 if best.weight_decay else True
    return is_lowest or any(lr == best.learning_rate and wd < best.weight_decay for lr, wd in best.as_good)


def _memory(best: Recommendation, goal: Goal) -> float:
    """n at the end of a run with the recommended settings."""
    return best.learning_rate * best.weight_decay * goal.tokens / (goal.tokens_per_step or 1)


def _flat_set(best: Recommendation) -> str:
    """Cells that are as good, the recommended one among them, by learning rate."""
    by_rate = {best.learning_rate: [best.weight_decay]}
    for lr, wd in best.as_good:
        by_rate.setdefault(lr, []).append(wd)
    by_rate = dict(sorted(by_rate.items(), key=lambda one: (one[0] != best.learning_rate, one[0])))
    groups = [f"LR {format_number(lr)} with {_span('WD', decays)}" for lr, decays in by_rate.items()]
    more = f"; and {len(groups) - MAX_GROUPS} more LRs" if len(groups) > MAX_GROUPS else ""
    return "; ".join(groups[:MAX_GROUPS]) + more


def _span(name: str, values: Sequence[float]) -> str:
    low, high = format_number(min(values)), format_number(max(values))
    return f"{name} {low}" if low == high else f"{name} {low} to {high}"


def _warnings(tuned: Tuned, goal: Goal, answers: Sequence[Answer]) -> list[str]:
    """A best setting at an end of its range, or of what did not fail, may have better ones behind; a low WD that does
    not matter has not."""
    from isotune.tune.failures import ends_beside

    best, cells = tuned.recommendation, goal.space.cells
    ends = {
        "LR": (best.learning_rate, cells[:, 0], "--lr", True),
        "WD": (best.weight_decay, cells[:, 1], "--wd", goal.tokens_per_step is None),
    }
    lines = []
    for name, (value, axis, option, low_counts) in ends.items():
        at_high = math.isclose(math.log2(value), float(axis.max()), abs_tol=1e-6)
        at_low = math.isclose(math.log2(value), float(axis.min()), abs_tol=1e-6)
        if float(np.ptp(axis)) and (at_high or (at_low and low_counts)):
            end = "upper" if at_high else "lower"
            lines.append(f"{name} is at the {end} end of its range: widen {option}")
    for given_up in ends_beside(goal, tuned.unanswered, answers, (best.learning_rate, best.weight_decay)):
        lines.append(
            f"{given_up.axis} lies beside what was given up ({given_up.words} {format_number(given_up.value)}): find "
            "out why runs fail there, better settings may lie behind"
        )
    return lines


def _counts(answers: Sequence[Answer], goal: Goal) -> dict[str, int]:
    return {
        "runs": len(answers),
        "full_length": sum(answer.question.tokens == goal.tokens for answer in answers),
        "diverged": sum(answer.has_diverged for answer in answers),
        "longer": sum(answer.question.tokens > goal.tokens for answer in answers),
    }


def _evidence(answers: Sequence[Answer], goal: Goal) -> str:
    runs, full, diverged, longer = _counts(answers, goal).values()
    words = f"{runs} runs, {full} of them of the full length"
    words += f", {diverged} diverged" if diverged else ""
    return words + (f", {longer} longer, which are not used" if longer else "")


def _given_up(tuned: Tuned, answers: Sequence[Answer]) -> float | None:
    """The LR from which on failures were taken for divergences."""
    from isotune.tune.failures import failing_like_divergence

    failing = failing_like_divergence(tuned.unanswered, answers)
    return min((answer.question.learning_rate for answer in failing), default=None)


def _failing_sides(tuned: Tuned, answers: Sequence[Answer]) -> dict[str, float]:
    """The ends of the range that were left out."""
    from isotune.tune.failures import failing_sides

    return failing_sides(tuned.unanswered, answers)


def _failed(tuned: Tuned, answers: Sequence[Answer]) -> list[str]:
    """Runs without an answer, and what was concluded from them."""
    if not tuned.unanswered:
        return []
    given_up = _given_up(tuned, answers)
    words = f"{len(tuned.unanswered)} runs gave no loss"
    if given_up is not None:
        words += f"; LR {format_number(given_up)} and above was given up, since all runs there failed"
    for side, value in _failing_sides(tuned, answers).items():
        words += f"; {side} {format_number(value)} was given up, since all runs there failed"
    return [_line("failed", words)]


def _trained(tuned: Tuned, goal: Goal) -> str:
    earlier = f", {format_tokens(tuned.spent_before)} of them before," if tuned.spent_before else ""
    num_runs = tuned.grid_tokens // goal.tokens
    share = _percent(tuned.spent_tokens / tuned.grid_tokens)
    return (
        f"{format_tokens(tuned.spent_tokens)} tokens{earlier} in {format_seconds(tuned.seconds)}: {share} of a grid of "
        f"{num_runs} runs, which saves {format_tokens(max(0, tuned.grid_tokens - tuned.spent_tokens))}"
    )


def _ended(tuned: Tuned, goal: Goal, limits: Limits) -> str:
    most = format_tokens(limits.max_tokens or 0)
    return {
        "good enough": f"the expected regret is below {_percent(goal.tolerance)}, as --tolerance asks",
        "max_tokens": f"another round would pass --max-tokens ({most})",
        "max_hours": f"another round would end after --max-hours ({limits.max_hours or 0:g})",
        "nothing left to ask": "every setting was tried",
        "interrupted": "it was interrupted: repeat the command to go on",
        "no answers": "no run gave a loss",
        "all diverged": "all runs diverged",
        "too many failures": "too many runs in a row failed: mend the reason, or narrow --lr and --wd",
    }[tuned.stopped]


def _more(tuned: Tuned, goal: Goal, limits: Limits, again: str) -> list[str]:
    """What it would cost to know more."""
    questions = tuned.more.suggestion.questions
    is_certain = tuned.stopped == "good enough" and not tuned.recommendation.regret  # no tolerance is below that
    if not questions or is_certain or tuned.stopped == "interrupted":
        return []
    price = sum(tuned.more.prices)
    asked = "; ".join(
        f"{_settings(question.learning_rate, question.weight_decay)} at {format_tokens(question.tokens)}"
        + (f" with seed {question.seed}" if question.seed != goal.seeds[0] else "")
        for question in questions[:MAX_LISTED]
    )
    asked += f"; and {len(questions) - MAX_LISTED} more" if len(questions) > MAX_LISTED else ""
    is_whole = not again.startswith("isotune")  # the same command has its tolerance and its limit already
    change = _tolerance(tuned, goal, is_whole) + _max_tokens(tuned, goal, limits, is_whole)
    return [
        _line("to know more", f"the next round costs {format_tokens(price)} tokens ({asked})"),
        _line("", f"go on with: {again}{change}"),
    ]


def _tolerance(tuned: Tuned, goal: Goal, is_whole: bool) -> str:
    """The option for a command that goes on: what is reached already would end it at once."""
    if tuned.stopped == "good enough":
        half, regret = goal.tolerance / 2, tuned.recommendation.regret
        return f" --tolerance {100 * (half if half < 0.9 * regret else regret / 2):.2g}"  # below it when rounded, too
    if is_whole or goal.tolerance == type(goal).tolerance:
        return ""
    return f" --tolerance {100 * goal.tolerance:.3g}"


def _max_tokens(tuned: Tuned, goal: Goal, limits: Limits, is_whole: bool) -> str:
    """The option for a command that goes on: the limit that was given, or a higher one if the next round needs it."""
    price = sum(tuned.more.prices)
    if limits.max_tokens is None:
        return ""
    if tuned.spent_tokens + price > limits.max_tokens:
        some_rounds = min(4 * price, max(price, tuned.grid_tokens - tuned.spent_tokens))  # a grid would tell all
        return f" --max-tokens {_round_up(tuned.spent_tokens + some_rounds)}"
    is_default = limits.max_tokens == DEFAULT_RUNS * goal.tokens
    return "" if is_whole or is_default else f" --max-tokens {_exact(limits.max_tokens)}"


def _exact(tokens: int) -> str:
    """A token count that is read as the same number.

    >>> _exact(500_000_000), _exact(22_020_096)
    ('500M', '22020096')
    """
    short = format_tokens(tokens)
    return short if parse_tokens("tokens", short) == tokens else str(tokens)


def _round_up(tokens: int) -> str:
    """A token count with two digits, not below the given one.

    >>> _round_up(11_010_048)
    '12M'
    """
    digits = 10 ** max(0, len(str(tokens)) - 2)
    return format_tokens(-(-tokens // digits) * digits)


def _pasted(best: Recommendation) -> list[str]:
    lines = paste_in(best.learning_rate, best.weight_decay)
    return [lines["torch"], f"or, where WD is independent of LR: {lines['independent']}"]


def _line(name: str, words: str) -> str:
    return f"  {name:<13} {words}"


def _settings(learning_rate: float, weight_decay: float) -> str:
    return f"LR {format_number(learning_rate)}, WD {format_number(weight_decay)}"


def _percent(share: float) -> str:
    """
    >>> _percent(0.0025), _percent(0.9), _percent(1.0)
    ('0.25 %', '90 %', '100 %')
    """
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"
