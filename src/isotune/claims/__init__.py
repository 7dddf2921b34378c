"""Tables -> verdicts on the paper's claims, by the rules that experiments/claims.toml fixed beforehand.

    rules.py         reads the file and evaluates its conditions: Entry, Measured, Estimate -> Verdict
    rows.py          sets of rows and windows by their names in the file: Tables, Rows, RowSet, Run
    definitions.py   the [definitions] of the file as functions
    judges/          a function per claim that computes its statistics
    judging.py       judge, rule, parts judged apart and replication put together: judge_claim
    sweeps.py        the sweeps that the tables are made of
    pages.py         verdicts as text, Markdown and JSON; isotune.report.verdicts makes a page

How to write a judge. It measures; the rule in claims.toml decides. It never reads a verdict or a threshold for one.

    @judges("C99")
    def c99(rows: Rows, entry: Entry) -> Measured:
        small = rows["small_late"]                      # RowSet; raises RowsMissing if nothing is there
        window = rows.window("late")                    # (start, end) in tokens
        values = window_means(small, "val_loss", window)
        return Measured(
            statistics={"slope": slope_across_elr(small, values, entry)},     # the names of [claims.C99.statistic]
            num_cells=small.num_cells,                  # compared with min_cells
            shown={"mean loss": float(values.mean())},  # plain numbers, words, lists or dicts of them
            notes=("a sentence for the reader",),
        )

- `entry["key"]` is a number of the claim or of [defaults]; `entry.level`, `entry.draws`, `entry.random_seed`.
- In a replication `rows["small_late"]`, `rows.window(...)`, `rows.budgets(..., rows=small)` give small32's; the judge
  does not know. `rows.has("perturbed_late")` asks before; a statistic that cannot be had is Estimate(nan, reason=why).
  Conditions on names in `left_out` are not judged (a replication without a batch switch).
- Where a claim is judged apart, the judge is called once per part with `rows.part` set to the set (or table) judged.
- `would_decide="which runs"` is printed where the rule leaves the claim undecided although all rows are there.
- Raise RowsMissing("which rows, which sweep") where nothing can be measured: the claim is then undecided.
- Diverged runs are already left out of a RowSet (`num_diverged` counts them); a diverged decay has a NaN loss.
- Draws are vectorised: `cell_weights(rows, entry)` is [draws x runs], `interval(value, drawn, entry.level)` makes the
  Estimate; `grids.GridLosses.drawn` is the seed bootstrap.
"""

from isotune.claims.judging import ClaimVerdict, Judgement, chosen_claims, judge_claim, judges
from isotune.claims.rows import Rows, RowSet, RowsMissing, Run, Tables
from isotune.claims.rules import Entry, Estimate, Measured, Rules, Verdict, read_rules

__all__ = [
    "ClaimVerdict",
    "Entry",
    "Estimate",
    "Judgement",
    "Measured",
    "RowSet",
    "Rows",
    "RowsMissing",
    "Rules",
    "Run",
    "Tables",
    "Verdict",
    "chosen_claims",
    "judge_claim",
    "judges",
    "read_rules",
]
