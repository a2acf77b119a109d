"""Quantization names and package pins of a source tree."""

from __future__ import annotations

import ast
import re
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from engineroom.runner.contract_source_tree import SourceTree
from engineroom.runner.contract_source_values import UNKNOWN, ClassRef, Values, plain

MODE = "tensorrt_llm/quantization/mode.py"
# Package name on the index -> the key that contracts use.
PACKAGES = {
    "torch": "torch",
    "tensorrt": "tensorrt",
    "nvidia-modelopt": "modelopt",
    "transformers": "transformers",
    "triton": "triton_openai",
    "torchao": "torchao",
    "flashinfer-python": "flashinfer",
    "xgrammar": "xgrammar",
    "numpy": "numpy",
    "cuda-python": "cuda_python",
    "nvidia-nccl-cu13": "nccl",
    "nvidia-nccl-cu12": "nccl",
    "nvidia-cutlass-dsl": "nvidia_cutlass_dsl",
}
_DOCKERFILE = "docker/Dockerfile.multi"
_SCRIPT = "docker/common/install_tensorrt.sh"
_SCRIPT_KEYS = {
    "TRT_VER": "tensorrt_image",
    "CUDA_VER": "cuda",
    "CUDNN_VER": "cudnn_image",
    "NCCL_VER": "nccl_image",
    "CUBLAS_VER": "cublas_image",
}


def quantization(tree: SourceTree, values: Values) -> dict[str, Any]:
    """The `quantization` section: names of QuantAlgo, and which serve weights and KV cache."""
    module = tree.module(MODE)
    if module is None or "QuantAlgo" not in module.classes:
        tree.note("quantization.quant_algo", f"{MODE} has no QuantAlgo that can be read")
        return {
            "quant_algo": None,
            "weight_quant_excludes": None,
            "kv_cache_quant_algo": None,
            "source": MODE,
        }
    names = [
        m.shown for m in values.members(ClassRef(module, module.classes["QuantAlgo"])).values()
    ]
    kv = plain(values.evaluate(module, module.assigns.get("KV_CACHE_QUANT_ALGO_LIST")))
    if not isinstance(kv, list):
        tree.note("quantization.kv_cache_quant_algo", "the list is not written out")
    excluded = _excluded(values, module.assigns.get("QUANT_ALGO_LIST"), module)
    if excluded is None:
        tree.note("quantization.weight_quant_excludes", "QUANT_ALGO_LIST is not written out")
    return {
        "quant_algo": names,
        "uncertain": [],
        "weight_quant_excludes": excluded,
        "kv_cache_quant_algo": kv if isinstance(kv, list) else None,
        "source": MODE,
    }


def _excluded(values: Values, node: ast.expr | None, module: Any) -> list[str] | None:
    """What `set(QuantAlgo) - {…}` takes away."""
    for item in ast.walk(node) if node is not None else ():
        if isinstance(item, ast.BinOp) and isinstance(item.op, ast.Sub):
            found = plain(values.evaluate(module, item.right))
            return found if isinstance(found, list) else None
    return None


def pins(tree: SourceTree) -> dict[str, Any]:
    """The `pins` section: requirements, base images and versions that the image scripts install."""
    found: dict[str, Any] = {}
    sources = []
    if tree.has("requirements.txt"):
        sources.append("requirements.txt")
        found |= _requirements(tree.text("requirements.txt"))
        if "tensorrt" not in found:
            found["tensorrt"] = "none: not among the requirements"
    else:
        tree.note("pins", "no requirements.txt")
    if tree.has(_DOCKERFILE):
        sources.append(_DOCKERFILE)
        arguments = dict(
            re.findall(r"(?m)^ARG[ \t]+(\w+)=[\"']?([^\s\"'#]+)", tree.text(_DOCKERFILE))
        )
        for key, image, tag in (
            ("base_image", "BASE_IMAGE", "BASE_TAG"),
            ("triton_base_image", "TRITON_IMAGE", "TRITON_BASE_TAG"),
        ):
            if "$" not in (text := f"{arguments.get(image, '$')}:{arguments.get(tag, '$')}"):
                found[key] = text
    if tree.has(_SCRIPT):
        sources.append(_SCRIPT)
        for name, value in re.findall(r"(?m)^(\w+_VER)=[\"']?([^\s\"'#$]+)", tree.text(_SCRIPT)):
            if name in _SCRIPT_KEYS:
                found.setdefault(_SCRIPT_KEYS[name], value)
    found["source"] = sources
    return found


def _requirements(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        words = re.sub(r"(^|\s)#.*", "", line).strip()
        if not words or words.startswith("-"):
            continue
        try:
            requirement = Requirement(words)
        except InvalidRequirement:
            continue
        key = PACKAGES.get(requirement.name.lower())
        if key and key not in found:
            limits = str(requirement.specifier)
            exact = re.fullmatch(r"==([^,*]+)", limits)
            found[key] = exact[1] if exact else _ordered(words, limits)
    return found


def _ordered(words: str, limits: str) -> str:
    """The specifier in the order it was written; `packaging` sorts it."""
    written = re.search(r"[<>=!~].*", words.split(";", 1)[0])
    return written[0].replace(" ", "") if written else limits or "any"


def version_text(tree: SourceTree, values: Values) -> str | None:
    """`__version__` of tensorrt_llm/version.py."""
    module = tree.module("tensorrt_llm/version.py", needed=True)
    value = values.evaluate(module, module.assigns.get("__version__")) if module else UNKNOWN
    return value if isinstance(value, str) else None
