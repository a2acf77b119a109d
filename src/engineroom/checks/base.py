"""What a rule over a spec sees, and the order of what rules say.

A rule is a function from a :class:`TargetContext` to findings. It reads no file and starts nothing.
What can be said without a spec is a rule over evidence (:mod:`engineroom.checks.evidence`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from engineroom.catalog import Catalog, Contract
from engineroom.spec import DeploymentSpec, Target
from engineroom.types import Finding, GpuSku, ModelShape, StackRelease


@dataclass(frozen=True)
class SpecPlace:
    """A target of a spec, for findings that need no more than its place."""

    index: int
    target_id: str | None

    def place(self, key: str) -> tuple[str | None, str]:
        """A key of the spec; `@` stands for the target's own path."""
        return None, key.replace("@", f"targets[{self.index}]", 1)


@dataclass(frozen=True)
class AdapterFacts:
    """What `adapter_config.json` of a LoRA adapter says.

    Attributes:
        rank: the largest rank of its modules; None when it states none.
        target_modules: Hugging Face's names.
        kind: ``LORA``, or another type of PEFT.
        dora: whether it has DoRA's magnitudes.
    """

    rank: int | None
    target_modules: tuple[str, ...]
    kind: str | None = None
    dora: bool = False


@dataclass(frozen=True)
class TargetContext:
    """Everything known about one target.

    Attributes:
        adapters: by name, those of `serving.features.lora` that are on this machine.
        tokenizer_json: whether the tokenizer's folder has a tokenizer.json; None when it was not looked at.
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
    adapters: Mapping[str, AdapterFacts] = field(default_factory=dict)
    tokenizer_json: bool | None = None

    @property
    def lane_in_contract(self) -> bool:
        """Whether the contract, when there is one, has this target's lane."""
        if self.contract is None:
            return False
        return self.contract.has_lane(self.target.lane)

    @property
    def target_id(self) -> str | None:
        return self.target.id

    def place(self, key: str) -> tuple[str | None, str]:
        return SpecPlace(self.index, self.target_id).place(key)


Rule = Callable[[TargetContext], Iterable[Finding]]


def order(findings: Iterable[Finding]) -> list[Finding]:
    """Worst first, then by file, key and code; duplicates removed."""
    unique = {(f.code, f.file, f.key, f.target, f.reason): f for f in findings}
    return sorted(
        unique.values(),
        key=lambda f: (f.severity.rank, f.file or "", f.key, f.code, f.target or ""),
    )
