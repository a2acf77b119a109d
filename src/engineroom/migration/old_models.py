"""config.pbtxt files of an old repository: models, and every setting as a leaf."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from engineroom.reading import model_config
from engineroom.reading.model_config import ModelConfig, truth, whole
from engineroom.reading.pbtxt import PLACEHOLDER, Message, Scalar
from engineroom.types.migration import Leaf, OldModel, OldTensor
from engineroom.types.migration_service import reached

_KINDS = (
    ("bls", "bls"), ("preprocessing", "preprocessing"), ("postprocessing", "postprocessing"),
    ("multimodal", "multimodal"),
)  # fmt: skip
_BY_PARAMETER = (
    ("gpt_model_path", "engine"), ("gpt_model_type", "engine"), ("engine_dir", "engine"),
    ("skip_special_tokens", "postprocessing"), ("add_special_tokens", "preprocessing"),
    ("accumulate_tokens", "bls"), ("tensorrt_llm_model_name", "bls"),
    ("context_model_name", "disaggregated"),
)  # fmt: skip
_ENGINE_TENSORS = {"input_ids", "input_lengths", "request_output_len"}


def kind_of(config: ModelConfig) -> str:
    """``engine``, ``ensemble``, ``bls``, ``preprocessing`` … or ``other``.

    What the file says comes first (backend, tensors), then the names of the templates, then
    parameters that one model of the family has.
    """
    if config.is_ensemble:
        return "ensemble"
    inputs = set(config.tensors("input"))
    if "disaggregated" in config.folder or "disaggregated" in config.name:
        return "disaggregated"  # takes token ids too, and hands them to two engines
    if config.backend == "tensorrtllm" or inputs >= _ENGINE_TENSORS:
        return "engine"
    runs_on = config.backend or config.platform or "python"  # onnxruntime, tensorrt_plan …
    if runs_on != "python" and "$" not in runs_on and "multimodal" not in config.folder:
        return "other"  # the family's other models are Python models
    for part, kind in _KINDS:
        if part in config.folder or part in config.name:
            return kind
    if {"QUERY", "REQUEST_OUTPUT_LEN"} <= inputs:
        return "preprocessing"
    if "TOKENS_BATCH" in inputs:
        return "postprocessing"
    for key, kind in _BY_PARAMETER:
        if key in config.parameters:
            return kind
    return "other"


def without_strangers(models: Sequence[OldModel]) -> list[OldModel]:
    """The same models, ensembles of other families and what only they reach as ``other``.

    An ensemble is of another family when every model that it comes to is in the repository and none of
    them leads to an engine.
    """
    names = {m.name for m in models}
    foreign = {
        m.file: [m, *reached(m, models)]
        for m in models
        if m.kind == "ensemble"
        and m.steps
        and not any(x.kind in ("engine", "bls", "disaggregated") for x in reached(m, models))
        and all(step in names for step in m.steps)
    }
    kept = {
        x.file
        for m in models
        if m.kind in ("ensemble", "bls") and m.file not in foreign
        for x in reached(m, models)
    }
    strange = {x.file for group in foreign.values() for x in group} - kept
    return [replace(m, kind="other") if m.file in strange else m for m in models]


def read_model(file: str, config: ModelConfig, filled: Mapping[str, str]) -> OldModel:
    """One model.

    Args:
        file: as shown in reports.
        filled: placeholder to the value that the build script gives it.
    """
    root = config.root
    batch = root.scalar("max_batch_size")
    policy = root.message("model_transaction_policy")
    decoupled = policy.scalar("decoupled") if policy else None
    return OldModel(
        file=file,
        name=config.name,
        kind=kind_of(config),
        backend="ensemble" if config.is_ensemble else config.backend,
        max_batch_size=whole(_filled(batch, filled)),
        decoupled=_truth(_filled(decoupled, filled)),
        parameters={key: scalar.text for key, scalar in config.parameters.items()},
        inputs=_tensors(config, "input"),
        outputs=_tensors(config, "output"),
        steps=config.steps,
        filled=dict(filled),
    )


def _truth(scalar: Scalar | None) -> bool | None:
    if scalar is not None and scalar.text in (
        "True",
        "False",
    ):  # Python's words, as scripts fill them
        return scalar.text == "True"
    return truth(scalar)


def _filled(scalar: Scalar | None, filled: Mapping[str, str]) -> Scalar | None:
    if scalar is None or not scalar.placeholders:
        return scalar
    return Scalar(fill(scalar.text, filled), scalar.line, scalar.quoted)


def fill(text: str, filled: Mapping[str, str]) -> str:
    """Placeholders with a value replaced; the others stay (`string.Template.safe_substitute`)."""
    return PLACEHOLDER.sub(lambda found: filled.get(found[1], found[0]), text)


def _tensors(config: ModelConfig, side: str) -> tuple[OldTensor, ...]:
    found = []
    for name, entry in config.tensors(side).items():
        kind = entry.scalar("data_type")
        sizes = [whole(item) for item in entry.scalars("dims")]
        known = [size for size in sizes if size is not None]
        found.append(
            OldTensor(
                name=name,
                data_type=kind.text if kind and not kind.placeholders else None,
                dims=tuple(known) if len(known) == len(sizes) else None,
                optional=truth(entry.scalar("optional")) or False,
                line=entry.line,
            )
        )
    return tuple(found)


def leaves(file: str, config: ModelConfig) -> Iterator[Leaf]:
    """Every setting of the file, in its order.

    A parameter, a tensor and a mapping of an ensemble step are one setting each; everything else is
    one a scalar, repeated scalars together, and a message without fields (``dynamic_batching { }``).
    """
    for key, line, value in _root(config.root):
        yield Leaf(file, key, line, value)


_Row = tuple[str, int, str]


def _root(root: Message) -> Iterator[_Row]:
    counts: dict[str, int] = {}
    done: set[str] = set()
    for item in root.fields:
        name, value = item.name, item.value
        if isinstance(value, Message) and name in ("input", "output"):
            label = value.scalar("name")
            told = label.text if label else f"[{_next(counts, name)}]"
            yield f"{name}.{told}" if label else f"{name}{told}", value.line, _text(value, {"name"})
        elif isinstance(value, Message) and name == "parameters":
            yield from _parameter(value, _next(counts, name))
        elif isinstance(value, Message) and name == "ensemble_scheduling":
            yield from _ensemble(value)
        elif isinstance(value, Message) and name == "instance_group":
            yield from _message(value, f"{name}[{_next(counts, name)}]")
        elif isinstance(value, Message):
            at = _next(counts, name)
            yield from _message(value, f"{name}[{at}]" if at else name or "(no name)")
        elif name not in done:
            done.add(name)
            yield name, value.line, _listed(list(root.scalars(name)))


def _parameter(entry: Message, at: int) -> Iterator[_Row]:
    key, value = entry.scalar("key"), entry.message("value")
    text = value.scalar("string_value") if value else None
    if key is not None and text is not None:
        yield f"parameters.{key.text}", text.line, text.text
    else:
        yield from _message(entry, f"parameters[{at}]")


def _ensemble(scheduling: Message) -> Iterator[_Row]:
    counts: dict[str, int] = {}
    for item in scheduling.fields:
        if item.name != "step" or not isinstance(item.value, Message):
            yield from _message(Message(item.line, (item,)), "ensemble_scheduling")
            continue
        step = item.value
        model = step.scalar("model_name")
        at = f"ensemble_scheduling.step.{model.text if model else ''}"
        again = _next(counts, at)
        at = f"{at}[{again}]" if again else at
        plain = tuple(f for f in step.fields if f.name not in ("input_map", "output_map"))
        yield at, step.line, _text(Message(step.line, plain), set())
        for side in ("input_map", "output_map"):
            for entry in step.messages(side):
                key, value = entry.scalar("key"), entry.scalar("value")
                if key is not None and value is not None:
                    yield f"{at}.{side}.{key.text}", key.line, value.text
                else:
                    yield from _message(entry, f"{at}.{side}")


def _message(message: Message, path: str) -> Iterator[_Row]:
    """Scalars of a message and of those in it; a message without fields is a setting too."""
    if not message.fields:
        yield path, message.line, "{}"
        return
    counts: dict[str, int] = {}
    done: set[str] = set()
    for item in message.fields:
        here = f"{path}.{item.name}" if item.name else path
        if isinstance(item.value, Message):
            at = _next(counts, item.name)
            yield from _message(item.value, f"{here}[{at}]" if at else here)
        elif item.name not in done:
            done.add(item.name)
            yield here, item.value.line, _listed(list(message.scalars(item.name)))


def _listed(values: list[Scalar]) -> str:
    return values[0].text if len(values) == 1 else "[" + ", ".join(v.text for v in values) + "]"


def _text(message: Message, without: set[str]) -> str:
    """Fields of a message in one line: ``data_type: TYPE_INT32, dims: [1], optional: true``."""
    parts: list[str] = []
    done: set[str] = set(without)
    for item in message.fields:
        if isinstance(item.value, Message):
            parts.append(f"{item.name}: {{{_text(item.value, set())}}}")
        elif item.name not in done:
            done.add(item.name)
            values = list(message.scalars(item.name))
            listed = item.listed or len(values) > 1
            text = ", ".join(v.text for v in values)
            parts.append(f"{item.name}: [{text}]" if listed else f"{item.name}: {text}")
    return ", ".join(parts)


def _next(counts: dict[str, int], name: str) -> int:
    counts[name] = counts.get(name, -1) + 1
    return counts[name]


def parse(path: str, text: str) -> ModelConfig:
    """`reading.model_config.read`, for callers of this package."""
    return model_config.read(path, text)
