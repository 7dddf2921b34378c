"""Recipes -> prefix tree -> executed segments, in local processes or on Ray.

`read_sweep`, `make_plan` and what they return need no torch; `run_sweep` does.
"""

from typing import TYPE_CHECKING, Any

from isotune.sweep.grids import Grid, Sweep, read_sweep, recipes_of, sweep_from_options
from isotune.sweep.plan import Plan, Price, make_plan

if TYPE_CHECKING:
    from isotune.sweep.driver import Limits, Progress, SweepResult
    from isotune.sweep.on_ray import ray_tasks
    from isotune.sweep.run import local_workers, run_sweep

__all__ = [
    "Grid",
    "Limits",
    "Plan",
    "Price",
    "Progress",
    "Sweep",
    "SweepResult",
    "local_workers",
    "make_plan",
    "ray_tasks",
    "read_sweep",
    "recipes_of",
    "run_sweep",
    "sweep_from_options",
]

_HOMES = {
    "Limits": "driver",
    "Progress": "driver",
    "SweepResult": "driver",
    "local_workers": "run",
    "ray_tasks": "on_ray",
    "run_sweep": "run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'isotune.sweep' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"isotune.sweep.{_HOMES[name]}"), name)
