"""Gradients -> noise, for any torch model.

`NoiseMeter` and `free_noise` need torch; `windows`, the arithmetic on stored columns, does not.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isotune.measure.meter import NoiseMeter, NoiseReading
    from isotune.measure.moments import free_noise
    from isotune.measure.scopes import hidden_matrices

__all__ = ["NoiseMeter", "NoiseReading", "free_noise", "hidden_matrices"]

_HOMES = {"NoiseMeter": "meter", "NoiseReading": "meter", "free_noise": "moments", "hidden_matrices": "scopes"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'isotune.measure' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"isotune.measure.{_HOMES[name]}"), name)
