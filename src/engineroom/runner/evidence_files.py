"""From paths to evidence: recognises what each file is, by name and by content.

Nothing is imported or executed; sizes, counts and depths are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engineroom.errors import UsageError, Where
from engineroom.reading import commands, requests
from engineroom.runner import tensor_files
from engineroom.runner.evidence_text import (
    command_line,
    read_facts,
    read_json,
    read_text,
    read_yaml,
)

MAX_FILES = 20_000
_SKIP = {".git", "__pycache__", ".venv", "node_modules"}
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_BY_NAME = {
    "generation_config.json": "generation_config",
    "tokenizer_config.json": "tokenizer_config",
    "hf_quant_config.json": "quant_config",
    "adapter_config.json": "adapter_config",
    ".helmignore": "helmignore",
    "values.yaml": "helm_values",
}
_LLM_ARGS = (
    "model.yaml",
    "llm_args.yaml",
    "extra_llm_api_options.yaml",
    "extra-llm-api-config.yml",
)
_HEAD = 200
__all__ = ["Found", "add_command", "collect", "model_folder", "read_facts", "read_text"]


@dataclass
class Found:
    """Raw parts, and the file each came from as the user named it."""

    parts: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    def put(self, part: str, value: Any, path: Path) -> None:
        """A part may come from one file only: which of two would be judged is no guess of ours."""
        if part in self.parts:
            raise UsageError(
                f"a second `{part}`: {self.files.get(part)} is one already",
                where=Where(path.as_posix()),
                hint="lint one model, engine or repository at a time",
            )
        self.parts[part], self.files[part] = value, path.as_posix()

    def add(self, part: str, value: Any, path: Path) -> None:
        items = self.parts.setdefault(part, [])
        self.files[f"{part}[{len(items)}]"] = path.as_posix()
        items.append(value)


def collect(paths: Sequence[Path]) -> Found:
    """Evidence in files and folders.

    Raises:
        UsageError: a path that is not there, a file too large or not of its kind, or a path in
            which nothing was recognised.
    """
    found = Found()
    for path in paths:
        before = len(found.files)
        if path.is_dir():
            for file in _walk(path):
                _read(found, file, path)
            _listing(found, path)
            _chart_listing(found, path)
        elif path.is_file():
            if not _read(found, path, path.parent):
                _by_content(found, path)
        else:
            raise UsageError(
                "neither a file nor a folder", where=Where(path.as_posix()), hint="check the path"
            )
        if len(found.files) == before and "checkpoint_files" not in found.parts:
            raise UsageError(
                "nothing here that lint knows",
                where=Where(path.as_posix()),
                hint="name a model repository, an engine or checkpoint folder, LLM arguments, a "
                "script with trtllm-build, Helm values, or a facts file with --facts",
            )
    return found


def model_folder(folder: Path) -> Found:
    """Evidence of a Hugging Face checkpoint: the files of the folder itself, not of folders below.

    Raises:
        UsageError: as :func:`collect`.
    """
    found = Found()
    for file in sorted(path for path in folder.iterdir() if path.is_file()):
        _read(found, file, folder)
    _listing(found, folder)
    return found


def _is_checkpoint(folder: Path) -> bool:
    """A model folder: what lies in folders below it (`original/`, `onnx/`) is another format's."""
    return (folder / "config.json").is_file() and any(
        path.suffix in _WEIGHTS for path in folder.iterdir()
    )


def _walk(root: Path) -> Iterator[Path]:
    """Regular files below `root`, sorted; linked folders are not entered."""
    count = 0
    if _is_checkpoint(root):
        yield from sorted(path for path in root.iterdir() if path.is_file())
        return
    stack = [root]
    while stack:
        folder = stack.pop()
        for path in sorted(folder.iterdir(), reverse=True):
            count += 1
            if count > MAX_FILES:
                raise UsageError(
                    f"more than {MAX_FILES} files", where=Where(root.as_posix()),
                    hint="name the folder of one model repository, engine or checkpoint",
                )  # fmt: skip
            if path.is_symlink():
                if path.is_file():
                    yield path
            elif path.is_dir():
                if path.name not in _SKIP:
                    stack.append(path)
            elif path.is_file():
                yield path


def _read(found: Found, path: Path, root: Path) -> bool:
    """Take a file up by its name; False when its name says nothing."""
    name, relative = path.name, path.relative_to(root).as_posix()
    if name == "config.pbtxt":
        model = path.parent.name
        found.add("triton_configs", {"path": f"{model}/{name}", "text": read_text(path)}, path)
    elif name == "model.json" and (backend := _vllm_config(path)) is not None:
        found.add("vllm_models", {"path": relative, "args": read_json(path), **backend}, path)
    elif name == "config.json":
        _config_json(found, path)
    elif name in _BY_NAME:
        part = _BY_NAME[name]
        text = read_text(path)
        found.put(part, text if part.startswith("helm") else read_json(path, text), path)
    elif name.endswith(".safetensors.index.json"):
        found.put("weight_index", read_json(path), path)
    elif name in _LLM_ARGS:
        found.put("model_yaml", read_yaml(path), path)
    elif name.endswith(".safetensors"):
        found.parts.setdefault("tensors", []).extend(tensor_files.listing(path))
        found.files.setdefault("tensors", path.as_posix())
    elif name.endswith(".sh"):
        return _script(found, path, read_text(path))
    elif "templates/" in relative and name.endswith((".yaml", ".tpl", ".yml")):
        found.add("_helm_templates", {"path": relative, "text": read_text(path)}, path)
    else:
        return False
    return True


def _vllm_config(path: Path) -> dict[str, Any] | None:
    """Instances of the vLLM-backend model that a `1/model.json` belongs to; None for another file."""
    config = path.parent.parent / "config.pbtxt"
    if not config.is_file():
        return None
    text = read_text(config)
    if not re.search(r'backend\s*:\s*"vllm"', text):
        return None
    count = re.search(r"\bcount\s*:\s*(\d{1,3})\b", text)
    return {
        "instances": max(1, int(count[1])) if count else 1,
        "own_gpu": "KIND_GPU" in text,
    }


def _config_json(found: Found, path: Path) -> None:
    """Three tools write a `config.json`: only its keys tell which."""
    data = read_json(path)
    if not isinstance(data, dict):
        raise UsageError("config.json is not an object", where=Where(path.as_posix()))
    if "pretrained_config" in data or "build_config" in data or set(data) == {"version"}:
        part = "engine_config"
    elif "mapping" in data or ("architecture" in data and "architectures" not in data):
        part = "checkpoint_config"
    else:
        part = "hf_config"
    found.put(part, data, path)


def _by_content(found: Found, path: Path) -> None:
    """A file whose name says nothing: a log, a build script, a YAML of LLM arguments or labels."""
    text = read_text(path)
    if path.suffix in (".yaml", ".yml"):
        data = read_yaml(path, text)
        kind = commands.yaml_kind(data)
        if kind == "node":
            found.put("node", commands.node_facts(data), path)
        elif kind == "helm_values":
            found.put("helm_values", text, path)
        elif kind == "model_yaml":
            found.put("model_yaml", data, path)
    elif path.suffix == ".json":
        data = read_json(path, text)
        kind = commands.json_kind(data)
        if requests.is_body(data):
            found.add("request_bodies", {"body": data}, path)
        elif kind:
            found.put(kind, commands.node_facts(data) if kind == "node" else data, path)
    elif path.suffix == ".log":
        found.put("log", text, path)
    else:
        _script(found, path, text)


def _script(found: Found, path: Path, text: str) -> bool:
    """A shell text with a `trtllm-build` call or curl calls to Triton; False for any other."""
    argv = commands.build_command(text)
    if argv:
        found.put("build_argv", argv, path)
    calls = requests.curl_requests(text)
    for call in calls:
        found.add("request_bodies", call, path)
    return bool(argv or calls)


def _listing(found: Found, root: Path) -> None:
    """A folder with weights is a checkpoint: names, sizes and the first bytes of its files."""
    entries = []
    for path in sorted(p for p in root.iterdir() if p.is_file()):
        entry: dict[str, Any] = {"path": path.name, "size_bytes": path.stat().st_size}
        if entry["size_bytes"] < 1_000_000 or path.suffix in _WEIGHTS:
            with path.open("rb") as file:
                entry["head"] = file.read(_HEAD).decode("utf-8", "replace")
        entries.append(entry)
    if any(Path(entry["path"]).suffix in _WEIGHTS for entry in entries):
        found.put("checkpoint_files", entries, root)
        sizes = [e["size_bytes"] for e in entries if e["path"].endswith(".safetensors")]
        if sizes and "tensors" in found.parts:
            found.put("checkpoint_bytes", sum(sizes), root)


def _chart_listing(found: Found, root: Path) -> None:
    """A folder with Chart.yaml is a Helm chart: names and sizes of its files."""
    if (root / "Chart.yaml").is_file():
        sizes = [(p.relative_to(root).as_posix(), p.stat().st_size) for p in _walk(root)]
        found.put("chart_files", [{"path": p, "size_bytes": s} for p, s in sizes], root)


def add_command(found: Found, text: str) -> None:
    """``--command``: a `trtllm-build` call, or a curl call to Triton.

    Raises:
        UsageError: quotes that do not close.
    """
    argv = command_line(text)
    calls = requests.curl_requests(text) if argv and argv[0].endswith("curl") else []
    for call in calls:
        found.add("request_bodies", call, Path("--command"))
    if not calls:
        found.put("build_argv", argv, Path("--command"))
