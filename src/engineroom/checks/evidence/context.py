"""What an evidence rule sees: the parts, the catalog, and the facts that follow from both.

A rule is a function from a :class:`Context` to findings and figures. It reads no file and stays
silent about parts that are absent: what is not known is no fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from engineroom.catalog import Catalog, Contract
from engineroom.names import LaneName, Stage, Topic
from engineroom.reading import Evidence
from engineroom.reading.facts import Wish
from engineroom.types import Figure, Finding, GpuSku, StackRelease

_PRODUCT = "nvidia.com/gpu.product"
# NVIDIA's own image: its tag names the release. A tag of another image promises nothing.
_NVIDIA_TAG = re.compile(r"^nvcr\.io/nvidia/tritonserver:(\d{2}\.\d{2})-trtllm-")


@dataclass(frozen=True)
class Context:
    """Evidence with its origins.

    Attributes:
        files: part name to the file it was read from, as the user named it.
        keys: evidence key to the key of the user's spec, for `check`.
    """

    evidence: Evidence
    catalog: Catalog
    files: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    target_id: str | None = None

    def place(self, key: str) -> tuple[str | None, str]:
        """(file, key) as the user knows them; `key` starts with the part's name."""
        if key in self.keys:
            return None, self.keys[key]
        part, _, rest = key.partition(".")
        bare = part.partition("[")[0]
        if part in self.files:
            return self.files[part], rest or part
        return self.files.get(bare), key

    # ---- wishes
    @cached_property
    def spec(self) -> Wish:
        return self.evidence.spec or Wish()

    @property
    def stage(self) -> Stage | None:
        return self.evidence.stage_requested

    @property
    def lane(self) -> LaneName | None:
        return self.spec.lane

    @property
    def tp(self) -> int:
        return self.spec.tensor_parallel

    @property
    def pp(self) -> int:
        return self.spec.pipeline_parallel

    # ---- the GPU
    def label(self, name: str) -> str | None:
        """A node label; ``nvidia.com/`` is added."""
        node = self.evidence.node
        return (node.labels or {}).get(f"nvidia.com/{name}") if node else None

    @property
    def product(self) -> str | None:
        gpu = self.evidence.gpu
        return (gpu.product if gpu else None) or self.label("gpu.product")

    @cached_property
    def sku(self) -> GpuSku | None:
        """The catalog's card of that product label; by its whole name, never by a part of it."""
        return self.catalog.sku_by_product(self.product) if self.product else None

    @cached_property
    def compute_capability(self) -> str | None:
        """Stated, else from the node's labels, else from the product."""
        gpu = self.evidence.gpu
        if gpu and gpu.compute_capability:
            return gpu.compute_capability
        major, minor = self.label("gpu.compute.major"), self.label("gpu.compute.minor")
        if major and minor and major.isdecimal() and minor.isdecimal():
            return f"{major}.{minor}"
        return self.sku.compute_capability if self.sku else None

    @cached_property
    def memory_mib(self) -> int | None:
        """Total memory of one device as stated or labelled, else the catalog's."""
        gpu = self.evidence.gpu
        if gpu and gpu.memory_mib:
            return gpu.memory_mib
        text = self.label("gpu.memory")
        if text and text.isdecimal() and int(text[:12]) > 0:
            return int(text[:12])
        return self.sku.memory_mib if self.sku else None

    # ---- the stack
    @cached_property
    def stack(self) -> StackRelease | None:
        """The catalog's release of that name, when there is one."""
        facts = self.evidence.stack
        name = facts.triton_release if facts else None
        if name is None and facts and facts.image and (tag := _NVIDIA_TAG.search(facts.image)):
            name = tag[1]
        return self.catalog.known_stack(name) if name else None

    @cached_property
    def trtllm(self) -> str | None:
        """TensorRT-LLM version of the stack: stated, else that of the Triton release."""
        facts = self.evidence.stack
        if facts and facts.tensorrt_llm_version:
            return facts.tensorrt_llm_version
        return self.stack.tensorrt_llm if self.stack else None

    @cached_property
    def contract(self) -> Contract | None:
        if self.trtllm and self.trtllm in self.catalog.contract_versions:
            return self.catalog.contract(self.trtllm)
        return None


Answer = Finding | Figure
Rule = Callable[[Context], Iterable[Answer]]


@dataclass(frozen=True)
class TopicRule:
    """A rule and the topics under which it speaks."""

    topics: frozenset[Topic]
    rule: Rule


def about(*topics: Topic) -> Callable[[Rule], TopicRule]:
    """Decorator: the topics of a rule."""

    def wrap(rule: Rule) -> TopicRule:
        return TopicRule(frozenset(topics), rule)

    return wrap
