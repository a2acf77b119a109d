"""What a rule sees, and how rules are run.

A rule is a function from a :class:`TargetContext` to findings. It reads no file and starts
nothing. A new topic is a new module whose ``RULES`` is added to the list below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from engineroom.catalog import Catalog, Contract
from engineroom.names import LaneName, Severity
from engineroom.spec import DeploymentSpec, Target
from engineroom.types import Finding, GpuSku, ModelShape, StackRelease


@dataclass(frozen=True)
class TargetContext:
    """Everything known about one target.

    Attributes:
        contract: None when no contract of the stack's TensorRT-LLM version is in the catalog.
        model: None when the model's config.json could not be read.
    """

    spec: DeploymentSpec
    index: int
    target: Target
    sku: GpuSku
    stack: StackRelease
    contract: Contract | None
    model: ModelShape | None
    catalog: Catalog

    @property
    def lane_in_contract(self) -> bool:
        """Whether the contract, when there is one, has this target's lane."""
        if self.contract is None:
            return False
        engine = self.target.lane is LaneName.ENGINE
        return self.contract.has_engine_lane if engine else self.contract.has_llmapi_lane

    def key(self, name: str) -> str:
        return f"targets[{self.index}].{name}"

    def finding(
        self, code: str, severity: Severity, key: str, reason: str, fix: str, source: str
    ) -> Finding:
        return Finding(code, severity, key, reason, fix, source, self.target.id)


Rule = Callable[[TargetContext], Iterable[Finding]]


def all_rules() -> Iterator[Rule]:
    """Every rule, in the order of the topics below."""
    # Imported here because the topics import TargetContext from this module.
    from engineroom.checks import drivers, lanes, limits, model, parallel, precision, shapes  # noqa: PLC0415

    for topic in (lanes, precision, drivers, model, parallel, shapes, limits):
        yield from topic.RULES


def check_target(context: TargetContext) -> list[Finding]:
    """All findings of all rules; nothing is dropped after the first."""
    return [finding for rule in all_rules() for finding in rule(context)]


def order(findings: Iterable[Finding]) -> list[Finding]:
    """Worst first, then by key and code; duplicates removed."""
    unique = {(f.code, f.key, f.target, f.reason): f for f in findings}
    return sorted(unique.values(), key=lambda f: (f.severity.rank, f.key, f.code, f.target or ""))
