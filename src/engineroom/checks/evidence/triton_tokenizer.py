"""Where the tokenizer is loaded from: a folder of the container, a mount, or the hub."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from engineroom.checks.codes import declare
from engineroom.checks.evidence import triton_repository as repo
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import Severity, Topic
from engineroom.types import Figure

_LOADS = (
    "NVIDIA/TensorRT-LLM triton_backend/all_models/inflight_batcher_llm/{preprocessing,postprocessing}"
    "/1/model.py (AutoTokenizer.from_pretrained)"
)
NOT_MOUNTED = declare(
    "tokenizer-not-in-container", Topic.TOKENIZER_PATH, Severity.ERROR,
    says="tokenizer_dir exists in the container",
    why="AutoTokenizer takes a folder that is not there for a hub id; the message speaks of Hugging Face",
    source=f"triton-inference-server/tensorrtllm_backend#109 (maintainer); {_LOADS}",
)  # fmt: skip
DIFFERENT = declare(
    "tokenizers-differ", Topic.TOKENIZER_PATH, Severity.WARN,
    says="preprocessing and postprocessing load the same tokenizer",
    why="ids of one vocabulary are turned into text by another",
    source=_LOADS,
)  # fmt: skip
UNFILLED = declare(
    "tokenizer-dir-unfilled", Topic.TOKENIZER_PATH, Severity.ERROR,
    says="tokenizer_dir is filled in",
    why="a placeholder or an empty text is neither a folder nor a hub id, and the model does not load",
    source=f"triton-inference-server/tensorrtllm_backend#109; {_LOADS}",
)  # fmt: skip
OFFLINE = declare(
    "tokenizer-not-in-cache", Topic.TOKENIZER_PATH, Severity.ERROR,
    says="a hub id is in the cache of a pod that works offline",
    why="from_pretrained finds nothing and may not ask the hub",
    source="Hugging Face Hub documentation, Environment variables (HF_HUB_OFFLINE, HF_HOME, HF_HUB_CACHE); "
    "Manage huggingface_hub cache-system (models--owner--name)",
)  # fmt: skip
GATED = declare(
    "tokenizer-gated-without-token", Topic.TOKENIZER_PATH, Severity.ERROR,
    says="a gated model comes with a hub token",
    why="the hub answers 401 or 403, and the model does not load",
    source="Hugging Face Hub documentation, Gated models; cards of meta-llama and google/gemma models",
)  # fmt: skip
DOWNLOADS = declare(
    "tokenizer-downloaded-at-start", Topic.TOKENIZER_PATH, Severity.INFO,
    says="a pod does not need the hub to start",
    why="each start downloads it again, and fails when the hub cannot be reached",
    source="Hugging Face Hub documentation, Environment variables (HF_HOME)",
)  # fmt: skip

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(?:/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
_GATED = re.compile(
    r"(?:meta-llama/|google/(?:gemma|codegemma|recurrentgemma|paligemma|medgemma)|"
    r"mistralai/(?:Mistral-7B-v0\.3|Mistral-7B-Instruct-v0\.[123]|Mixtral|Codestral|Mistral-Large|Mistral-Nemo)|"
    r"CohereForAI/|bigcode/starcoder)", re.IGNORECASE,
)  # fmt: skip
_TRUE = {"1", "true", "yes", "on"}


def _places(c: Context) -> Iterator[tuple[repo.Model, str]]:
    for model in repo.models(c):
        scalar = model.config.parameters.get("tokenizer_dir")
        reads = model.role in (repo.PREPROCESSING, repo.POSTPROCESSING)
        if reads and scalar is not None and not scalar.placeholders and scalar.text.strip():
            yield model, scalar.text


def _inside(path: PurePosixPath, folder: str) -> PurePosixPath | None:
    """`path` relative to `folder`, else None."""
    try:
        return path.relative_to(PurePosixPath(folder))
    except ValueError:
        return None


def _on_host(c: Context, path: PurePosixPath) -> PurePosixPath | None:
    """The host's path of a container path; the deepest mount wins."""
    mounts = (c.evidence.pod.mounts if c.evidence.pod else None) or ()
    best: tuple[int, PurePosixPath] | None = None
    for mount in mounts:
        rest = _inside(path, mount.container_path)
        depth = len(PurePosixPath(mount.container_path).parts)
        if rest is not None and (best is None or depth > best[0]):
            best = (depth, PurePosixPath(mount.host_path) / rest)
    return best[1] if best else None


def _exists(c: Context, path: PurePosixPath) -> bool:
    """A listed path, or a folder of a listed path."""
    return any(
        PurePosixPath(entry.path) == path or path in PurePosixPath(entry.path).parents
        for entry in c.evidence.host_files or ()
    )


def _right(c: Context, path: PurePosixPath) -> str | None:
    """Where in the container the folder meant by `path` is: the host path that ends most like it."""
    mounts = (c.evidence.pod.mounts if c.evidence.pod else None) or ()
    best: tuple[int, str] | None = None
    for entry in c.evidence.host_files or ():
        listed = PurePosixPath(entry.path)
        for folder in (listed, *list(listed.parents)[:4]):
            same = 0
            for a, b in zip(reversed(folder.parts), reversed(path.parts)):
                if a != b or a == "/":
                    break
                same += 1
            whole = folder == path
            if not same and not whole:
                continue
            for mount in mounts:
                rest = _inside(folder, mount.host_path)
                score = same + 100 * whole
                if rest is not None and (best is None or score > best[0]):
                    best = (score, str(PurePosixPath(mount.container_path) / rest))
    return best[1] if best else None


_IMAGE = ("/opt", "/usr", "/app", "/workspace", "/root", "/srv")
"""Where images keep what is built into them."""


def _of_image(path: PurePosixPath) -> bool:
    return any(_inside(path, folder) is not None for folder in _IMAGE)


def _unmounted(c: Context, path: PurePosixPath) -> bool:
    """Whether the host has a folder that ends like `path` (two names or more), under no mount."""
    tail = path.parts[-2:]
    return len(path.parts) > 2 and any(
        folder.parts[-2:] == tail
        for entry in c.evidence.host_files or ()
        for folder in (PurePosixPath(entry.path), *list(PurePosixPath(entry.path).parents)[:4])
    )


@about(Topic.TOKENIZER_PATH)
def unfilled(c: Context) -> Iterator[Answer]:
    for model in repo.models(c):
        scalar = model.config.parameters.get("tokenizer_dir")
        reads = model.role in (repo.PREPROCESSING, repo.POSTPROCESSING)
        if reads and scalar is not None and (scalar.placeholders or not scalar.text.strip()):
            yield UNFILLED.found(
                c, model.parameter_key("tokenizer_dir"), f"tokenizer_dir of {model.config.path} is "
                f"`{scalar.shown[:100]}`: AutoTokenizer takes it for a hub id", "write the folder's path in the "
                "container", line=scalar.line,
            )  # fmt: skip


@about(Topic.TOKENIZER_PATH)
def in_container(c: Context) -> Iterator[Answer]:
    places = list(_places(c))
    mounts = c.evidence.pod.mounts if c.evidence.pod else None
    found: dict[str, None] = {}
    for model, text in places:
        path = PurePosixPath(posixpath.normpath(text))
        if mounts is None or not path.is_absolute():
            continue
        host = _on_host(c, path)
        if c.evidence.host_files is None:
            # What the mounts hold is not known; a path under none of them is the image's, or nothing.
            if host is None and not _of_image(path):
                yield NOT_MOUNTED.found(
                    c, model.parameter_key("tokenizer_dir"), f"tokenizer_dir {text[:200]} of {model.config.path} is "
                    "not in the container: no mount holds it ("
                    + (f"mounted are {', '.join(m.container_path for m in mounts[:4])})" if mounts else
                       "nothing is mounted)"),
                    "mount the folder, and write its path in the container", line=model.line("tokenizer_dir"),
                )  # fmt: skip
            continue
        if host is not None and _exists(c, host):
            found[text] = None
            continue
        right = _right(c, path)
        if right is None and host is None and not _unmounted(c, path):
            continue  # a path of the image itself: nobody says what is there
        if right is not None:
            found[right] = None
        yield NOT_MOUNTED.found(
            c, model.parameter_key("tokenizer_dir"),
            f"tokenizer_dir {text[:200]} of {model.config.path} is not in the container"
            + (f": it is {host} on the host, which does not exist" if host is not None else
               ": no mount holds it"),
            f"write {right} in preprocessing and postprocessing" if right else
            "mount the folder, and write its path in the container", line=model.line("tokenizer_dir"),
        )  # fmt: skip
    if len(found) == 1:
        yield Figure("tokenizer_dir", next(iter(found)))
    texts = {posixpath.normpath(text) for _, text in places}
    if len(texts) > 1:
        shown = " and ".join(sorted(texts)[:3])
        yield DIFFERENT.found(
            c, places[-1][0].parameter_key("tokenizer_dir"), f"tokenizer_dir differs between models: {shown}",
            "give both the same folder", line=places[-1][0].line("tokenizer_dir"),
        )  # fmt: skip


def _true(env: dict[str, str], *names: str) -> str | None:
    return next((n for n in names if env.get(n, "").strip().lower() in _TRUE), None)


def _cached(c: Context, hub_id: str) -> bool | None:
    """Whether the hub id is in the cache that will be looked at; None where the cache is not known."""
    entries, env = c.evidence.hf_cache, c.evidence.env or {}
    if entries is None:
        return None
    hub = env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE")
    home = env.get("HF_HOME")
    prefix = "hub/"
    if hub:
        inside = _inside(PurePosixPath(hub), home) if home else None
        if inside is None:
            return None
        prefix = "" if str(inside) == "." else f"{inside}/"
    folder = prefix + "models--" + hub_id.replace("/", "--")
    return any(e.strip("/") == folder or e.strip("/").startswith(folder + "/") for e in entries)


@about(Topic.TOKENIZER_PATH)
def from_hub(c: Context) -> Iterator[Answer]:
    env, pod = c.evidence.env or {}, c.evidence.pod
    if (
        c.evidence.env is None
        and c.evidence.hf_cache is None
        and (pod is None or pod.hub_token is None)
    ):
        return
    offline = _true(env, "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    token = pod.hub_token if pod else None
    if any(env.get(n) for n in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN")):
        token = True
    for model, text in _places(c):
        if PurePosixPath(text).is_absolute() or not _HUB_ID.fullmatch(text) or text.startswith("."):
            continue
        key, line = model.parameter_key("tokenizer_dir"), model.line("tokenizer_dir")
        cached = _cached(c, text)
        if cached:
            continue
        folder = "hub/models--" + text.replace("/", "--")
        if offline and cached is False:
            yield OFFLINE.found(
                c, key, f"tokenizer_dir {text} of {model.config.path} is a hub id, {offline} is set, and the "
                f"cache has no {folder}", f"mount a cache that holds {folder}, or a folder with the tokenizer, "
                "and write its path", line=line,
            )  # fmt: skip
        elif not offline and token is False and _GATED.match(text):
            yield GATED.found(
                c, key, f"tokenizer_dir {text} is gated, and the pod has no hub token (401)",
                "give the pod HF_TOKEN from a Secret, or mount a folder with the tokenizer", line=line,
            )  # fmt: skip
        elif not offline:
            yield DOWNLOADS.found(
                c, key, f"tokenizer_dir {text} of {model.config.path} is a hub id: it is downloaded at each start",
                "mount a folder with the tokenizer", line=line,
            )  # fmt: skip


RULES = (unfilled, in_container, from_hub)
