"""Raw runs -> trajectories, by one set of rules for all kinds of sources.

A row's position is its `tokens`, or its `step` times the tokens of a step. Rows are sorted by position; of what was
written twice at one position the last writing counts, and what a restart abandoned is left out. Values that are not
finite are read as not measured, and a run whose loss ends with them has diverged. What a source does not say stays
"unknown". Every such act is noted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from isotune.errors import InputError
from isotune.integrations.importers.contract import Notes, RawRun, has_decimal_comma, shorten
from isotune.integrations.importers.options import SETTINGS, Options, has_our_name, read_setting
from isotune.integrations.importers.restarts import abandoned_rows
from isotune.recipe import format_number, format_tokens
from isotune.recipe.quantities import MAX_WHOLE_NUMBER, show
from isotune.runs.trajectory import RunInfo, Status, Trajectory, Unknown

Columns = dict[str, np.ndarray]

SHOULD_BE_KNOWN = ("learning_rate", "weight_decay", "batch_size", "sequence_length", "schedule", "seed")
SAME_SETTING = 1e-3  # relative: a setting and what the rows say of it this close are one
SAME_RATE = 1e-6  # relative: learning rates this close are one
BEGINNING = 0.01  # of a run: a learning rate that is logged this early is the first one
MAX_SWITCHES = 4  # that a history names one by one


class Assembly:
    """Takes raw runs one by one and remembers what none of them had."""

    def __init__(self, options: Options, names: Mapping[str, str], notes: Notes):
        self.options, self.notes = options, notes
        self.mapping = {ours: theirs for ours, theirs in names.items() if ours not in options.mapping}
        self.mapping |= options.mapping
        self._trajectories: list[Trajectory] = []
        self._num_runs = 0
        self._is_ours = False
        self._has_loss = False
        self._columns_seen: dict[str, None] = {}
        self._settings_seen: dict[str, None] = {}
        self._without_position: list[str] = []
        self._without_numbers: list[str] = []
        self._without_batch: list[str] = []

    def add(self, run: RawRun | Trajectory) -> None:
        self._num_runs += 1
        self.notes.begin_run()
        if isinstance(run, Trajectory):
            self._is_ours = True
            self._columns_seen.update(dict.fromkeys(run.columns))
            trajectory = self._checked(run)
        else:
            self._columns_seen.update(dict.fromkeys([run.run_column] if run.run_column else []))
            self._columns_seen.update(dict.fromkeys(run.columns))
            self._settings_seen.update(dict.fromkeys(run.settings))
            trajectory = self._assemble(run)
        if trajectory is not None:
            self._trajectories.append(trajectory)

    def finish(self, source: str) -> tuple[Trajectory, ...]:
        """All trajectories; an error if the user's names fit none, or nothing is left."""
        if not self._num_runs:
            dropped = "; ".join(self.notes.sentences())
            raise InputError(
                f"{source} holds no runs{f' ({dropped})' if dropped else ''}: give rows with tokens or steps and a "
                "loss, or say what its columns are with mapping= (--map val_loss=...)"
            )
        self._require_mapped(source)
        if not self._trajectories or (self._is_ours and self.options.loss not in self._columns_seen):
            raise self._nothing_left(source)
        self._note_failures()
        return tuple(self._trajectories)

    def _require_mapped(self, source: str) -> None:
        seen = self._columns_seen.keys() | self._settings_seen.keys() | self.notes.unused.keys()
        for ours, theirs in self.options.mapping.items():
            if theirs not in seen and not self._is_ours:
                raise InputError(f"{source} has no {theirs!r} to read as {ours}: {self._available()}")

    # One run

    def _checked(self, trajectory: Trajectory) -> Trajectory | None:
        """A run of ours, if it has the loss that the user named."""
        if self.options.mapping or self.options.settings:
            self.notes.add("mapping and settings not used: isotune's own runs know their names and settings")
        if len(trajectory.measured(self.options.loss)[0]) or trajectory.info.status == "diverged":
            return trajectory
        self.notes.count(f"runs without {self.options.loss}, left out", 1)
        return None

    def _assemble(self, run: RawRun) -> Trajectory | None:
        if not any(len(values) for values in run.columns.values()):  # it has no column that isotune has a name for
            self.notes.count(f"runs without {self.options.loss}, left out", 1, run.name)
            return None
        renamed = self._renamed(run)
        self._has_loss |= not np.isnan(renamed.get(self.options.loss, np.full(1, np.nan))).all()
        settings = self._settings(run, renamed)
        columns = self._on_tokens(run, renamed, settings)
        if columns is None:
            return None
        if not len(columns["tokens"]) or np.isnan(columns.get(self.options.loss, np.full(1, np.nan))).all():
            self.notes.count(f"runs without {self.options.loss}, left out", 1, run.name)
            return None
        has_diverged = any(_ends_badly(columns[name]) for name in self._losses(columns))
        for name, values in columns.items():
            if name != "tokens":
                what = f"values of {name} that are not finite, read as not measured"
                self.notes.count(what, np.isinf(values).sum(), run.name)
                columns[name] = np.where(np.isinf(values), np.nan, values)
        if has_diverged:
            self.notes.count("runs whose loss ends with NaN or infinity, taken as diverged", 1, run.name)
        return Trajectory(_typed(columns), self._info(run, columns, settings, has_diverged))

    def _renamed(self, run: RawRun) -> Columns:
        """The columns under our names; one that has our name by accident gives way to the one that was mapped to it."""
        columns = {}
        for name, values in run.columns.items():
            if self._gives_way(run, name):
                self.notes.add(f"column {name} left out, since {self.mapping[name]} is to be read as {name}")
            elif name in self.mapping.values():
                continue  # below, under our name alone
            elif has_our_name(name) or name in SETTINGS or name == self.options.loss:
                columns[name] = values
            else:
                self.notes.unused[name] = None
        for ours, theirs in self.mapping.items():
            if theirs in run.columns:
                columns[ours] = run.columns[theirs]
        return columns

    def _gives_way(self, run: RawRun, name: str) -> bool:
        theirs = self.mapping.get(name, name)
        is_setting = theirs in run.settings and theirs not in run.columns
        return theirs != name and not is_setting

    def _settings(self, run: RawRun, columns: Columns) -> dict[str, Any]:
        """What the user said, else what the source says, checked."""
        settings: dict[str, Any] = {}
        for name in SETTINGS:
            value = run.settings.get(self.mapping.get(name, name), run.settings.get(name))
            if name in columns and name not in ("learning_rate", "weight_decay", "batch_size", "tokens"):
                value = self._constant(run, name, columns.pop(name))
            if value is not None and value != "unknown":
                try:
                    settings[name] = read_setting(name, value)
                except InputError as error:
                    self.notes.add(f"{error}; read as unknown", run.name)
            if name in self.options.settings:
                if settings.get(name, self.options.settings[name]) != self.options.settings[name]:
                    why = f"{name} of the source replaced by the one that was given, {self.options.settings[name]}"
                    self.notes.add(why, run.name)
                settings[name] = self.options.settings[name]
        return settings

    def _constant(self, run: RawRun, name: str, values: np.ndarray) -> float | None:
        """A setting that the source wrote into every row."""
        values = values[np.isfinite(values)]
        if len(values) and (values != values[-1]).any():
            self.notes.add(f"{name} changes along the run: its last value is taken", run.name)
        return float(values[-1]) if len(values) else None

    def _on_tokens(self, run: RawRun, columns: Columns, settings: Mapping[str, Any]) -> Columns | None:
        """The columns sorted on the token axis; None if the run has no such axis."""
        has_tokens, has_step = (name in columns and not np.isnan(columns[name]).all() for name in ("tokens", "step"))
        if not has_tokens and not has_step:
            has_columns = "tokens" in columns or "step" in columns
            (self._without_numbers if has_columns else self._without_position).append(run.name)
            return None
        if has_tokens and has_step and np.isnan(columns["tokens"]).any():
            columns = self._sorted(run, columns, "step")
            columns = self._fill_tokens(run, columns)
        elif not has_tokens:
            columns.pop("tokens", None)
            columns = self._sorted(run, columns, "step")
            tokens = self._tokens_of_steps(run, columns, settings)
            if tokens is None:
                self._without_batch.append(run.name)
                return None
            columns = {"tokens": tokens} | columns
        elif not has_step and "tokens_per_step" in settings:
            columns = columns | {"step": columns["tokens"] / settings["tokens_per_step"]}
        return self._sorted(run, columns, "tokens")

    def _tokens_of_steps(self, run: RawRun, columns: Columns, settings: Mapping[str, Any]) -> np.ndarray | None:
        """Steps x batch size x sequence length, the batch size of each row where rows have one."""
        steps = columns["step"]
        if "tokens_per_step" in settings:
            return steps * settings["tokens_per_step"]
        if "sequence_length" not in settings:
            return None
        if "batch_size" not in columns or "batch_size" in self.options.settings:
            batch = settings.get("batch_size")
            return None if batch is None else steps * batch * settings["sequence_length"]
        batches = _carried(columns["batch_size"])
        if not len(batches) or not (batches > 0).all():
            return None
        if (batches != batches[0]).any():
            self.notes.add("tokens added up from steps, with the batch size of each row", run.name)
        return np.cumsum(np.diff(steps, prepend=0.0) * batches) * settings["sequence_length"]

    def _fill_tokens(self, run: RawRun, columns: Columns) -> Columns:
        """Rows that were logged without tokens get them from their step, between rows that have both."""
        steps, tokens = columns["step"], columns["tokens"]
        there = np.isfinite(tokens)
        if not there.any():
            return columns
        inside = ~there & (steps >= steps[there].min()) & (steps <= steps[there].max())
        filled = np.where(inside, np.round(np.interp(steps, steps[there], tokens[there])), tokens)
        self.notes.count("rows without tokens, which are interpolated from their step", inside.sum(), run.name)
        return columns | {"tokens": filled}

    def _sorted(self, run: RawRun, columns: Columns, axis: str) -> Columns:
        """Rows in ascending order of an axis, one per position."""
        at = columns[axis]
        with np.errstate(invalid="ignore"):
            usable = (at >= 0) & (at <= MAX_WHOLE_NUMBER)
        if not usable.all():
            what = f"rows whose {axis} is missing, negative or no number, left out"
            self.notes.count(what, len(at) - usable.sum(), run.name)
            columns = {name: values[usable] for name, values in columns.items()}
            at = columns[axis]
        whole = np.round(at)
        self.notes.count(f"{axis} that are no whole numbers, rounded", (whole != at).sum(), run.name)
        forward = np.diff(whole) > 0
        if forward.all():
            return columns | {axis: whole}
        return self._merged(run, columns, axis, whole)

    def _merged(self, run: RawRun, columns: Columns, axis: str, whole: np.ndarray) -> Columns:
        back = int((np.diff(whole) < 0).sum())
        self.notes.count(f"places where {axis} goes back (a restart, or rows out of order), sorted", back, run.name)
        measured = [values for name, values in columns.items() if name != "step" and name not in SETTINGS]
        is_void = abandoned_rows(whole, [~np.isnan(values) for values in measured])
        positions, index = np.unique(whole, return_inverse=True)
        merged, num_again = {axis: positions}, 0
        for name in columns.keys() - {axis}:
            is_written = ~np.isnan(columns[name])
            kept = is_written & ~is_void
            merged[name] = np.full(len(positions), np.nan)
            merged[name][index[kept]] = columns[name][kept]  # of equal indices numpy keeps the last
            if name not in ("step", "tokens"):
                num_again += int(is_written.sum()) - len(np.unique(index[is_written]))
        what = f"values written again at the same {axis}, of which the last is kept"
        self.notes.count(what, num_again, run.name)
        what = f"rows that share their {axis} with another, made into one"
        self.notes.count(what, len(whole) - len(positions), run.name)
        stays = np.isin(positions, whole[~is_void])
        self.notes.count("rows of a stretch that a restart abandoned, left out", (~stays).sum(), run.name)
        return {name: merged[name][stays] for name in columns}

    def _losses(self, columns: Columns) -> Iterable[str]:
        return {self.options.loss, "val_loss", "train_loss"} & columns.keys()

    # What is known of it

    def _info(self, run: RawRun, columns: Columns, settings: Mapping[str, Any], has_diverged: bool) -> RunInfo:
        last = _last_before_decay(columns.get("learning_rate"))
        known = {name: settings.get(name, "unknown") for name in SHOULD_BE_KNOWN}
        for name in ("learning_rate", "weight_decay", "batch_size"):
            known[name] = self._of_rows(run, name, columns, last, known[name])
        if known["schedule"] == "unknown" and last is not None:
            known["schedule"] = _describe_rates(columns["learning_rate"])
        convention = settings.get("weight_decay_convention", "unknown")
        unknown = [name for name, value in known.items() if value == "unknown"]
        if unknown:
            remedy = "map a name of the source to it (mapping, --map) or give it (settings, --set)"
            self.notes.add(f"not known: {', '.join(unknown)}; {remedy}", run.name)
        if convention == "unknown" and known["weight_decay"] != "unknown":
            remedy = "coupled (w *= 1 - lr*wd, PyTorch) or independent (w *= 1 - wd)"
            how = "weight_decay_convention= or --wd-convention"
            self.notes.add(f"the convention of weight_decay is unknown: say {remedy}, with {how}", run.name)
        return RunInfo(
            **known,
            weight_decay_convention=convention,
            status="diverged" if has_diverged else self._status(run, settings),
            source=run.source,
            setup=settings.get("setup", ""),
            history=_history(columns, last),
            decay_tokens=self._decay_tokens(run, columns, settings, last),
            has_plateau=_has_plateau(columns, last),
            num_parameters=settings.get("num_parameters", "unknown"),
        )

    def _decay_tokens(
        self, run: RawRun, columns: Columns, settings: Mapping[str, Any], last: int | None
    ) -> int | Unknown:
        falling, length = _falling_tokens(columns, last), int(columns["tokens"][-1])
        stated: int | Unknown = settings.get("decay_tokens", falling)
        if isinstance(stated, int) and stated > length:
            longer = f"decay_tokens={format_tokens(stated)} is longer than the run ({format_tokens(length)} tokens)"
            self.notes.add(f"{longer}: not used", run.name)
            return falling
        return stated

    def _of_rows(self, run: RawRun, name: str, columns: Columns, last: int | None, stated: Any) -> Any:
        """A setting that rows have: the user's word, else its value in the last row before a decay."""
        if name not in columns:
            return stated
        values = _carried(columns[name])
        if not len(values) or np.isnan(values).all():
            return stated
        value = float(values[-1 if last is None else last])
        try:
            of_rows = read_setting(name, value)
        except InputError as error:
            self.notes.add(f"{error}; read as unknown", run.name)
            return stated
        differs = stated != "unknown" and not np.isclose(stated, of_rows, rtol=SAME_SETTING, atol=0)
        if name == "learning_rate" and name not in self.options.settings and last is not None:
            if _begins_late(columns, last):
                return self._peak(run, stated, of_rows)
            if stated != "unknown" and _may_peak_at(columns, last, stated):
                return stated
        if name in self.options.settings:
            if differs:
                self.notes.add(f"{name} of the rows replaced by the one that was given, {stated}", run.name)
            return stated
        if differs:
            self.notes.add(f"{name} is {stated} in the settings and {of_rows} in the rows, which count", run.name)
        return of_rows

    def _peak(self, run: RawRun, stated: Any, of_rows: float) -> float:
        """The learning rate of a run whose rows begin after its peak: the stated one, else the highest there is."""
        if stated != "unknown" and stated >= of_rows:
            return float(stated)
        self.notes.add(
            "the learning rate falls from its first row on, so that its peak may lie before: the highest one is taken; "
            "settings={'learning_rate': ...} or --set learning_rate=... gives the peak",
            run.name,
        )
        return of_rows

    def _status(self, run: RawRun, settings: Mapping[str, Any]) -> Status:
        status: Status | None = self.options.settings.get("status") or run.status or settings.get("status")
        if status is None:
            self.notes.add("the source does not say how runs ended: taken as finished", run.name)
            return "finished"
        return status

    # What none of them had

    def _nothing_left(self, source: str) -> InputError:
        loss, problems = self.options.loss, self._without_axis()
        theirs = self.mapping.get(loss, loss)
        if theirs not in self._columns_seen:
            problems.append(
                f"has no run with {loss}: map it, such as {loss}=eval/loss (mapping, --map), or name another with "
                "loss= or --loss"
            )
        elif not self._has_loss:
            problems.append(f"has a column {theirs} without a number in it{self._example(theirs)}")
        elif not problems:
            problems.append(f"has no {loss} in any row with a position: map both tokens and step if rows have either")
        dropped = "; ".join(self.notes.sentences())
        return InputError(
            f"{source} {'; and it '.join(problems)}; {self._available()}{f' ({dropped})' if dropped else ''}"
        )

    def _example(self, name: str) -> str:
        """A value of the column that is no number."""
        word = self.notes.no_numbers.get(name)
        if word is None:
            return ""
        return f", as {show(word)} is none" + ": a decimal comma is not read" * has_decimal_comma(word)

    def _without_axis(self) -> list[str]:
        """Why runs have no token axis; which, where the reasons differ."""
        whats = {
            "neither tokens nor step: map one, such as tokens=num_tokens (mapping, --map)": self._without_position,
            "a column tokens or step without a number in it: write 1000000 or 1M": self._without_numbers,
            "steps and no tokens, and the tokens of a step are not known: give batch_size and sequence_length (or "
            "tokens_per_step) in settings (--set batch_size=64), or map tokens": self._without_batch,
        }
        found = {what: runs for what, runs in whats.items() if runs}
        if len(found) == 1:
            return [f"has {what}" for what in found]
        return [f"has runs ({shorten(runs, 3)}) with {what}" for what, runs in found.items()]

    def _available(self) -> str:
        columns = [*self._columns_seen, *(name for name in self.notes.unused if name not in self._columns_seen)]
        words = f"its columns are {shorten(columns, 20)}" if columns else "it has no columns"
        return f"{words}; its settings are {shorten(self._settings_seen, 20)}" if self._settings_seen else words

    def _note_failures(self) -> None:
        for name in self._without_position:
            self.notes.count("runs with neither tokens nor step, left out", 1, name)
        for name in self._without_numbers:
            self.notes.count("runs without a number in tokens or step, left out", 1, name)
        for name in self._without_batch:
            what = "runs with steps whose batch_size or sequence_length is not known, left out"
            self.notes.count(what, 1, name)


def _ends_badly(values: np.ndarray) -> bool:
    """Whether the last value that was written is not finite."""
    values = values[~np.isnan(values)]
    return bool(len(values) and np.isinf(values[-1]))


def _typed(columns: Columns) -> Columns:
    """Whole numbers for tokens and, where all rows have it, for steps."""
    typed = dict(columns)
    typed["tokens"] = columns["tokens"].astype(np.int64)
    if "step" in columns and np.isfinite(columns["step"]).all():
        typed["step"] = np.round(columns["step"]).astype(np.int64)
    return typed


def _carried(values: np.ndarray) -> np.ndarray:
    """Values with the gaps filled by what was measured before, the first gap by what comes after it."""
    there = np.flatnonzero(np.isfinite(values))
    if not len(there):
        return values[:0]
    before = np.searchsorted(there, np.arange(len(values)), side="right") - 1
    return values[there[np.maximum(before, 0)]]


def _last_before_decay(rates: np.ndarray | None) -> int | None:
    """The row where the final fall of the learning rate begins, the last row if it does not end falling.

    A constant stretch after a fall is a phase of its own; zeros at the end are none. None if fewer than two rows have a
    learning rate: one shows no schedule.
    """
    there = np.flatnonzero(np.isfinite(rates)) if rates is not None else np.zeros(0, dtype=np.int64)
    if rates is None or len(there) < 2:
        return None
    rates = rates[there]
    above = np.flatnonzero(rates > 0)
    if not len(above):
        return None
    last = int(above[-1])
    falls = rates[1 : last + 1] < rates[:last] * (1 - SAME_RATE)
    gaps = np.flatnonzero(~falls)
    return int(there[gaps[-1] + 1 if len(gaps) else 0])


def _begins_late(columns: Columns, last: int) -> bool:
    """Whether the learning rate falls from its first row on, and that row is not at the run's beginning."""
    there = np.flatnonzero(np.isfinite(columns["learning_rate"]))
    tokens = columns["tokens"]
    return bool(last == there[0] and tokens[last] > BEGINNING * tokens[-1])


def _may_peak_at(columns: Columns, last: int, rate: float) -> bool:
    """Whether the learning rate may have been this high between rows: below the lines through those at its peak."""
    there = np.flatnonzero(np.isfinite(columns["learning_rate"]))
    rates, tokens = columns["learning_rate"][there], columns["tokens"][there]
    row = int(np.searchsorted(there, last))
    if row + 1 == len(there):  # it does not fall
        return False
    before, after = tokens[row] - (tokens[row - 1] if row else 0), tokens[row + 1] - tokens[row]
    rise, fall = rates[row] - rates[row - 1] if row else 0.0, rates[row] - rates[row + 1]
    if row and rise <= SAME_RATE * rates[row]:  # a plateau, whose rows are the rate itself
        return False
    room = max(fall / after * before, rise / before * after if row else 0.0)
    return bool(rates[row] <= rate <= (rates[row] + room) * (1 + SAME_SETTING))


def _has_plateau(columns: Columns, last: int | None) -> bool | Unknown:
    """Whether the learning rate was the same in two rows before its final fall."""
    if last is None:
        return "unknown"
    rates = columns["learning_rate"][: last + 1]
    rates = rates[np.isfinite(rates)]
    return bool((np.abs(np.diff(rates)) <= SAME_RATE * rates[:-1]).any())


def _falling_tokens(columns: Columns, last: int | None) -> int | Unknown:
    """How long the learning rate fell at the end, as far as its rows tell."""
    return "unknown" if last is None else int(columns["tokens"][-1] - columns["tokens"][last])


def _history(columns: Columns, last: int | None) -> str:
    """What rows say of the run before its main phase, warm-up aside: "LR 0.001 until 20B, batch 512 until 30B"."""
    tokens, parts = columns["tokens"], _earlier_rates(columns, last)
    for name, word in (("weight_decay", "WD"), ("batch_size", "batch")):
        values = _carried(columns.get(name, np.zeros(0)))
        values = values if last is None or name == "batch_size" else values[: last + 1]
        switches = np.flatnonzero(np.abs(np.diff(values)) > SAME_RATE * np.abs(values[:-1]))
        if len(switches) > MAX_SWITCHES:
            parts.append(f"{word} changing until {format_tokens(tokens[switches[-1]])}")
        else:
            parts += [
                f"{word} {format_number(float(values[row]))} until {format_tokens(tokens[row])}" for row in switches
            ]
    return ", ".join(parts)


def _earlier_rates(columns: Columns, last: int | None) -> list[str]:
    """Learning rates from which the run fell before its main phase; the fall that ends a run is not among them."""
    if not last:
        return []
    rates, tokens = _carried(columns["learning_rate"])[: last + 1], columns["tokens"]
    falls = np.flatnonzero(rates[1:] < rates[:-1] * (1 - SAME_RATE))
    begins = [row for row in falls if row == 0 or row - 1 not in falls]
    return [
        f"LR {format_number(float(rates[row]))} until {format_tokens(tokens[row])}" for row in begins[-MAX_SWITCHES:]
    ]


def _describe_rates(rates: np.ndarray) -> str:
    """The learning rate's course in a few words, read off its column."""
    rates = rates[np.isfinite(rates)]
    change = np.diff(rates)
    signs = np.where(np.abs(change) <= SAME_RATE * rates[:-1], 0, np.sign(change))
    ends = np.append(np.flatnonzero(np.diff(signs)) + 1, len(rates) - 1)
    if len(ends) > 8:
        return "changes often in the learning_rate column"
    words = {0: "constant at", 1: "rising to", -1: "falling to"}
    parts = [f"{words[int(signs[end - 1]) if end else 0]} {format_number(float(rates[end]))}" for end in ends]
    return ", ".join(parts)
