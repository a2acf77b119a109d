"""What `migrate` read in an old setup, and what becomes of each setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from engineroom.names import StrEnum
from engineroom.types.migration_service import Service, reached, service_of


class Fate(StrEnum):
    """What becomes of one setting of the old setup."""

    KEPT = "kept"
    """Same name and meaning in the new setup."""
    RENAMED = "renamed"
    """Same meaning under another name of the same place."""
    MOVED = "moved"
    """Said in another place: the spec, the package, or derived from the model by itself."""
    REDEFAULTED = "re-defaulted"
    """Not carried over: the new side's own default holds, and it may differ."""
    IMPOSSIBLE = "impossible"
    """The new lane has nothing for it; `todo` says what to do."""
    LEFTOVER = "leftover"
    """A placeholder that nobody filled, or a value that nobody reads."""


@dataclass(frozen=True)
class Leaf:
    """One value of an old file.

    Attributes:
        file: as shown: below the repository by its relative path, else the file's name.
        key: path in the file: ``parameters.max_beam_width``, ``input.text_input.dims``,
            ``build_config.max_batch_size``, ``trtllm-build[0].--gemm_plugin``. Unique per file with `line`.
        line: 1-based; None for JSON, which is read without lines.
        value: as written (text), or the JSON value.
    """

    file: str
    key: str
    line: int | None
    value: Any


@dataclass(frozen=True)
class OldTensor:
    """An input or output of an old model.

    Attributes:
        data_type: ``TYPE_STRING`` …; None when absent or a placeholder.
        dims: None when one of them is a placeholder.
    """

    name: str
    data_type: str | None
    dims: tuple[int, ...] | None
    optional: bool
    line: int


@dataclass(frozen=True)
class OldModel:
    """One `config.pbtxt`.

    Attributes:
        file: path below the repository, ``ensemble/config.pbtxt``.
        name: what clients call it.
        kind: ``ensemble``, ``bls``, ``preprocessing``, ``postprocessing``, ``engine``,
            ``multimodal``, ``disaggregated`` or ``other``.
        backend: ``tensorrtllm``, ``python``, ``ensemble``; None when the file names none.
        max_batch_size: None when absent or a placeholder.
        decoupled: None when absent or a placeholder.
        parameters: key to text as written, placeholders included.
        steps: models that an ensemble chains, in order.
        filled: placeholder to the value that `fill_template.py` calls of the build script give it.
    """

    file: str
    name: str
    kind: str
    backend: str | None
    max_batch_size: int | None
    decoupled: bool | None
    parameters: Mapping[str, str]
    inputs: tuple[OldTensor, ...]
    outputs: tuple[OldTensor, ...]
    steps: tuple[str, ...] = ()
    filled: Mapping[str, str] = field(default_factory=dict)

    def text(self, key: str) -> str | None:
        """A parameter with the script's values put in; None when absent or left unfilled."""
        written = self.parameters.get(key)
        for name, value in self.filled.items() if written is not None else ():
            written = (written or "").replace(f"${{{name}}}", value)
        return None if written is None or "${" in written else written

    @property
    def client_facing(self) -> bool:
        """Takes text: what clients of the usual layouts call."""
        return self.kind in ("ensemble", "bls")


@dataclass(frozen=True)
class EngineFacts:
    """`config.json` of an engine or of a TensorRT-LLM checkpoint.

    Attributes:
        what: ``engine`` or ``checkpoint``.
        version: TensorRT-LLM that wrote it, as written; None when it does not say.
        quant_algo, kv_cache_quant_algo: as written; None for none.
        limits: the `build_config` numbers that bound requests (``max_batch_size`` …).
        data: the whole JSON object.
    """

    file: str
    what: str
    version: str | None
    architecture: str | None
    dtype: str | None
    quant_algo: str | None
    kv_cache_quant_algo: str | None
    group_size: int | None
    tp_size: int
    pp_size: int
    limits: Mapping[str, int]
    data: Mapping[str, Any]


@dataclass(frozen=True)
class BuildFlag:
    """One option of a call.

    Attributes:
        name: ``--gemm_plugin``; for words that follow no option, ``argument``.
        written: the words as in the script, quotes removed, variables kept.
        values: the words after expansion; a variable that has no value stays as ``${NAME}``.
        unresolved: names of the variables and substitutions without a known value.
    """

    name: str
    written: tuple[str, ...]
    values: tuple[str, ...]
    line: int
    unresolved: tuple[str, ...] = ()

    @property
    def value(self) -> str:
        return " ".join(self.values)


@dataclass(frozen=True)
class BuildCall:
    """A call of a known tool in a build script.

    Attributes:
        tool: ``trtllm-build``, ``convert_checkpoint.py``, ``quantize.py``, ``fill_template.py``,
            ``launch_triton_server.py``, ``tritonserver`` …
        index: 0 for the first call of that tool in the file.
        program: the words before the options (``python3 examples/llama/convert_checkpoint.py``).
    """

    file: str
    line: int
    tool: str
    index: int
    program: str
    flags: tuple[BuildFlag, ...]

    def flag(self, *names: str) -> BuildFlag | None:
        """The last flag of one of the names, as argparse takes it."""
        return next((f for f in reversed(self.flags) if f.name in names), None)


@dataclass(frozen=True)
class OldSetup:
    """Everything that was read; nothing in it was executed.

    Attributes:
        generation: TensorRT-LLM versions that the files fit, in words, with the reason.
        version: one version out of them where a file states it, else None.
        leaves: every value of every file, in order: the report must mention each.
        variables: plain assignments of the build script, resolved as far as it says.
        first, last: the oldest and newest release that the files fit; None: no bound is known.
    """

    repo: Path
    models: tuple[OldModel, ...]
    engine: EngineFacts | None
    checkpoint: EngineFacts | None
    calls: tuple[BuildCall, ...]
    generation: str
    version: str | None
    leaves: tuple[Leaf, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    first: str | None = None
    last: str | None = None

    @cached_property
    def service(self) -> Service:
        """What one spec can say of the repository."""
        return service_of(self.models)

    def of_kind(self, *kinds: str) -> tuple[OldModel, ...]:
        """Models of the service, those of other engines left out."""
        others = self.service.others
        return tuple(m for m in self.models if m.kind in kinds and m not in others)

    @property
    def fronts(self) -> tuple[OldModel, ...]:
        """Models that clients call with text and that reach `engine_model`; the BLS model comes first, as
        the more capable one. An ensemble of other models is no front of the engine."""
        ensembles = [
            m
            for m in self.of_kind("ensemble")
            if any(x is self.engine_model for x in reached(m, self.models))
            or any("${" in s for s in m.steps)
        ]
        return (*self.of_kind("bls"), *ensembles)

    @property
    def engine_model(self) -> OldModel | None:
        """The model that runs the engine; clients may call it with token ids."""
        return self.service.engine

    def speaks(self, model: OldModel) -> bool:
        """Whether its settings are the service's: not another engine's, nor a draft's."""
        return model not in self.service.others and model not in self.service.helpers

    def parameter(self, key: str, *kinds: str) -> str | None:
        """Text of a parameter in the first model of these kinds (default: all) that has it filled.

        Of engine models only the service's own counts.
        """
        for model in filter(self.speaks, self.models):
            text = model.text(key)
            if (not kinds or model.kind in kinds) and text is not None:
                return text
        return None


@dataclass(frozen=True)
class SettingReport:
    """One setting of an old file and its fate.

    Attributes:
        new_key: where it is said now, as ``serving.streaming`` of the spec, a tensor of the new model,
            or None.
        new_value: what the spec or the model has there.
        what: one sentence: why this fate.
        todo: what the user has to do; empty when nothing.
        source: where the fact was read.
    """

    file: str
    key: str
    line: int | None
    old_value: Any
    fate: Fate
    new_key: str | None
    new_value: Any
    what: str
    todo: str
    source: str

    def as_dict(self) -> dict[str, Any]:
        return {
            "file": self.file, "key": self.key, "line": self.line, "old_value": self.old_value,
            "fate": str(self.fate), "new_key": self.new_key, "new_value": self.new_value,
            "what": self.what, "todo": self.todo, "source": self.source,
        }  # fmt: skip


@dataclass(frozen=True)
class Migration:
    """What `migrate` wrote.

    Attributes:
        setup: what was read.
        spec_text: text of `engineroom.yaml`.
        spec: the same, parsed to plain data (``spec["serving"]["streaming"]``).
        settings: one for each leaf of `setup.leaves`, in that order.
        findings: of `engineroom check` on the new spec, as dictionaries; empty when it could not run.
        missing: what the user must fill in before `check` passes; empty when it passes.
        notes: what should be known and belongs to no one setting.
        paths: name (``spec``, ``report_json``, ``report_md``, ``clients``, ``ab_plan``) to file.
    """

    setup: OldSetup
    spec_text: str
    spec: Mapping[str, Any]
    settings: tuple[SettingReport, ...]
    findings: tuple[Mapping[str, Any], ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]
    out: Path
    paths: Mapping[str, Path]

    @property
    def passes(self) -> bool:
        return not self.missing and not any(f["severity"] == "error" for f in self.findings)
