"""`lint`: judges what somebody else made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from engineroom.catalog import Catalog
from engineroom.checks import order
from engineroom.checks.evidence import Context, evidence_rules, judge
from engineroom.errors import UsageError, Where
from engineroom.names import Stage, Topic
from engineroom.reading import Evidence
from engineroom.reading.files import TextFile
from engineroom.runner import evidence_files
from engineroom.spec.model import StackRef
from engineroom.types import Finding
from engineroom.types.finding import verdict_of


@dataclass(frozen=True)
class LintReport:
    """What was recognised, and what the rules say about it.

    Attributes:
        figures: values worked out on the way (KV tokens, right settings …) by name.
        files: part to the file it was read from.
    """

    findings: list[Finding]
    figures: dict[str, Any]
    files: dict[str, str]

    @property
    def verdict(self) -> str:
        """``error``, ``warn`` or ``ok``; information is no alarm."""
        return verdict_of(self.findings)

    def as_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "findings": [f.as_dict() for f in self.findings],
            "figures": self.figures,
            "files": self.files,
        }


def lint(
    paths: Sequence[Path] = (),
    *,
    facts: Path | None = None,
    command: str | None = None,
    topics: Sequence[str] = (),
    stage: str | None = None,
    stack: str | None = None,
    sku: str | None = None,
    lane: str | None = None,
    catalog: Path | None = None,
) -> LintReport:
    """Judge artefacts of any tool.

    Args:
        paths: files and folders; what they are is recognised (docs/lint.md).
        facts: a JSON or YAML file with what no artefact says: `spec`, `gpu`, `node`, `requests` …
        command: a `trtllm-build` command line, or a curl call to a generate endpoint.
        topics: only these; empty means all.
        stage: the verdict is asked for this stage (a format may be made where it cannot be served).
        stack: Triton release, or a TensorRT-LLM version.
        sku: id of the catalog.

    Raises:
        UsageError: a path, option or file that is not what it should be, with file and key.
    """
    found = evidence_files.collect(paths)
    if facts is not None:
        _add_facts(found, facts)
    if command is not None:
        evidence_files.add_command(found, command)
    known = Catalog(catalog)
    _add_options(found, known, stage=stage, stack=stack, sku=sku, lane=lane)
    templates = _settle(found)
    wanted = tuple(_topic(name) for name in topics)
    context = Context(_validated(found), known, found.files)
    findings, figures = judge(context, wanted)
    helm = {Topic.HELM_VALUES, Topic.HELM_SIZE}
    for text, file in templates if not wanted or helm & set(wanted) else ():
        one = context.evidence.model_copy(update={"helm_template": text})
        files = {**found.files, "helm_template": file}
        findings += judge(Context(one, known, files), tuple(helm & set(wanted) or helm))[0]
    return LintReport(order(findings), figures, dict(sorted(found.files.items())))


def lint_topics() -> tuple[str, ...]:
    """Topics that have rules, sorted."""
    return tuple(sorted({str(t) for rule in evidence_rules() for t in rule.topics}))


def _topic(name: str) -> Topic:
    try:
        return Topic(name)
    except ValueError:
        raise UsageError(
            f"no topic `{name}`", where=Where(key="--topic"), hint="one of " + ", ".join(Topic)
        ) from None


def _add_facts(found: evidence_files.Found, path: Path) -> None:
    if not path.is_file():
        raise UsageError("no such file", where=Where(path.as_posix()), hint="check --facts")
    data = evidence_files.read_facts(path)
    if not isinstance(data, dict):
        raise UsageError("facts are a mapping of parts", where=Where(path.as_posix()))
    for part, value in data.items():
        if part in found.parts and part not in ("tensors", "checkpoint_files", "checkpoint_bytes"):
            found.put(part, value, path)  # says which file has it already
        found.parts[part] = value
        found.files[part] = path.as_posix()


def _add_options(
    found: evidence_files.Found,
    catalog: Catalog,
    *,
    stage: str | None,
    stack: str | None,
    sku: str | None,
    lane: str | None,
) -> None:
    """Options win over facts: they are what was typed last."""
    if stage is not None:
        if stage not in list(Stage):
            raise UsageError(
                f"no stage `{stage}`", where=Where(key="--stage"), hint="one of " + ", ".join(Stage)
            )
        found.parts["stage_requested"] = stage
    if stack is not None:
        facts = _mapping(found.parts, "stack")
        if catalog.known_stack(stack) is not None:
            facts["triton_release"] = stack
        else:
            made = catalog.stack(StackRef(trtllm=stack), Where(key="--stack"))
            facts["tensorrt_llm_version"] = made.tensorrt_llm
    if sku is not None:
        card = catalog.sku(sku, Where(key="--sku"))
        _mapping(found.parts, "gpu").update(
            product=card.node_label,
            compute_capability=card.compute_capability,
            memory_mib=card.memory_mib,
        )
    if lane is not None:
        _mapping(found.parts, "spec")["lane"] = lane


def _mapping(parts: dict[str, Any], name: str) -> dict[str, Any]:
    value = parts.setdefault(name, {})
    if not isinstance(value, dict):
        raise UsageError(f"`{name}` is a mapping", where=Where(key=name))
    return value


def _settle(found: evidence_files.Found) -> list[tuple[TextFile, str]]:
    """What follows from several files together: the family, and a chart's templates.

    Returns:
        The templates of a chart that has several, with their files: each is judged by itself.
    """
    raw = found.parts.pop("_helm_templates", [])
    names = [found.files.pop(f"_helm_templates[{i}]") for i in range(len(raw))]
    templates = [(TextFile(**item), name) for item, name in zip(raw, names, strict=True)]
    if len(templates) == 1 and "helm_template" not in found.parts:
        found.parts["helm_template"] = raw[0]
        found.files["helm_template"] = names[0]
        templates = []
    configs = found.parts.get("triton_configs")
    if configs and "triton_family" not in found.parts and isinstance(configs, list):
        texts = "".join(str(item.get("text", "")) for item in configs if isinstance(item, dict))
        if 'backend: "tensorrtllm"' in texts or "gpt_model_path" in texts:
            found.parts["triton_family"] = "inflight_batcher_llm"
        elif "model_yaml" in found.parts:
            found.parts["triton_family"] = "llmapi"
    return templates


def _validated(found: evidence_files.Found) -> Evidence:
    """All parts, typed.

    Raises:
        UsageError: the file and key of the first part that is not what it should be.
    """
    try:
        return Evidence.model_validate(found.parts)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _not_so(first, found.files) from None


def _not_so(error: Mapping[str, Any], files: Mapping[str, str]) -> UsageError:
    loc = [str(item) for item in error["loc"]]
    part = loc[0] if loc else "facts"
    hint = None
    if error["type"] == "extra_forbidden":
        hint = "known parts: " + ", ".join(sorted(Evidence.model_fields)) if len(loc) == 1 else None
    return UsageError(
        str(error["msg"]), where=Where(files.get(part), key=".".join(loc)[:500]), hint=hint
    )
