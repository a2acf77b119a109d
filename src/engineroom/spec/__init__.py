"""The one file users write: typed, closed, frozen, versioned."""

from engineroom.spec.load import LoadedSpec, load_spec, parse_spec
from engineroom.spec.model import DeploymentSpec, StackRef, Target

__all__ = ["DeploymentSpec", "LoadedSpec", "StackRef", "Target", "load_spec", "parse_spec"]
