"""The open, notebook-first machine-learning engine for GUI agents.

What a person types daily is here, as in `oaml.load_policy("nano")`; a name is imported when it is first used, so that
`import oaml` is fast and needs nothing heavy. These names stay: one that has to go warns for a release before it does."""
__version__ = "0.1.0"

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what an editor and a type checker read; `_PLACES` says the same, and a test compares
    from .apps.catalog import load_app as load_app
    from .devices.app_device import AppDevice as AppDevice
    from .devices.catalog import open_device as open_device
    from .evals.suites import evaluate_suite as evaluate_suite
    from .evals.suites import load_agent as load_agent
    from .evals.suites import load_suite as load_suite
    from .ingest.episodes import load_episodes as load_episodes
    from .ingest.episodes import save_episodes as save_episodes
    from .ingest.store import load_sessions as load_sessions
    from .runtime.agents import PolicyAgent as PolicyAgent
    from .runtime.play import play as play
    from .runtime.policy import load_policy as load_policy
    from .schemas.actions import parse_response as parse_response
    from .schemas.sessions import Action as Action
    from .schemas.sessions import Episode as Episode
    from .schemas.sessions import Observation as Observation
    from .schemas.sessions import Session as Session
    from .schemas.sessions import Step as Step
    from .scripts.inspect import open_inspector as open_inspector
    from .scripts.synth import synth as synth
    from .scripts.train import train as train
    from .training.config import load_config as load_config

_PLACES = {
    "schemas.sessions": ("Action", "Observation", "Step", "Episode", "Session"), "schemas.actions": ("parse_response",),
    "apps.catalog": ("load_app",), "devices.app_device": ("AppDevice",), "devices.catalog": ("open_device",),
    "ingest.store": ("load_sessions",), "ingest.episodes": ("load_episodes", "save_episodes"), "training.config": ("load_config",),
    "runtime.policy": ("load_policy",), "runtime.agents": ("PolicyAgent",), "runtime.play": ("play",),
    "evals.suites": ("load_suite", "load_agent", "evaluate_suite"),
    "scripts.synth": ("synth",), "scripts.train": ("train",), "scripts.inspect": ("open_inspector",)}

__all__ = [name for names in _PLACES.values() for name in names]


def __getattr__(name: str):
    "Import a public name when it is first asked for; a missing package is named with the extra that brings it."
    module = next((module for module, names in _PLACES.items() if name in names), None)
    if module is None: raise AttributeError(f"module 'oaml' has no attribute {name!r}; it has {', '.join(__all__)}")
    try: value = getattr(import_module(f"oaml.{module}"), name)
    except ModuleNotFoundError as e:
        from .schemas.packages import import_advice
        raise ImportError(f"oaml.{name}: {import_advice(e)}") from e
    globals()[name] = value
    return value


def __dir__(): return sorted([*globals(), *__all__])
