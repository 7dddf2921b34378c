"""What a report is made of: the runs, what they say and what they do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from isotune.analyze.diagnosis import Diagnosis, diagnose_family
from isotune.analyze.families import Family, make_families
from isotune.analyze.scaling import Laws, fit_laws
from isotune.errors import InputError
from isotune.runs.trajectory import Trajectory


@dataclass(frozen=True)
class Findings:
    """A source's runs with a diagnosis and laws for each family; `reason` where there is none."""

    label: str  # of the source
    loss: str
    level: float
    trajectories: tuple[Trajectory, ...] = field(repr=False)
    diagnoses: tuple[Diagnosis, ...]
    laws: tuple[Laws, ...]  # one for each diagnosis
    warnings: tuple[str, ...]  # of the import, and families that could not be diagnosed
    reason: str = ""

    @property
    def families(self) -> tuple[Family, ...]:
        return tuple(diagnosis.family for diagnosis in self.diagnoses)


def find(
    trajectories: Sequence[Trajectory],
    *,
    loss: str = "val_loss",
    label: str = "",
    warnings: Sequence[str] = (),
    level: float = 0.9,
) -> Findings:
    """What these runs say. Data of which nothing can be said gives findings that say so; nothing is raised."""
    words = list(warnings)
    try:
        families = make_families(trajectories, loss)
    except InputError as error:
        return Findings(label, loss, level, tuple(trajectories), (), (), tuple(words), str(error))
    diagnoses, laws = [], []
    for family in families:
        try:
            diagnosis = diagnose_family(family, level=level)
            laws.append(fit_laws(diagnosis, level=level))
        except InputError as error:
            words.append(f"{family.name}: nothing can be said: {error}")
        else:
            diagnoses.append(diagnosis)
    reason = "" if diagnoses else "; ".join(words[len(warnings) :])
    return Findings(label, loss, level, tuple(trajectories), tuple(diagnoses), tuple(laws), tuple(words), reason)
