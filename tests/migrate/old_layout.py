"""Serves an old `inflight_batcher_llm` setup, as far as that can be done without TensorRT-LLM.

What is the setup's own: every config.pbtxt (model names, tensors and their shapes, `decoupled`,
`max_batch_size`, the ensemble's steps and tensor maps, parameters, which model a BLS model calls).

What is not, and is put in its place:

* The Python files of preprocessing, postprocessing and tensorrt_llm_bls are upstream's and cannot be
  kept here; engineroom's own (`model_repo_templates/engine`) take their tensors by the same names. They
  need parameters that upstream's do not have (`ours` below), which are added. Upstream's BLS model
  calls preprocessing and postprocessing; ours tokenizes by itself, with their parameters.
* The C++ backend `tensorrtllm` is the stand-in (`model_repo_templates/engine_standin`), which computes
  with the reference runtime. It is not TensorRT-LLM.
* `tokenizer_dir` and `gpt_model_path` name the tests' tiny model, and the engine's limits are cut to
  what that model has. A parameter that is a placeholder still is dropped: upstream takes it for unset.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from engineroom.catalog.resources import data_root
from engineroom.runner.triton import TritonServer, work_folder

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = tuple(sorted(path.name for path in FIXTURES.iterdir() if path.is_dir()))
MAX_SEQ_LEN = 1024
"""Of the tiny model."""
_TEMPLATES = data_root() / "model_repo_templates"
_PROMPT_FILES = (
    "chat_template.py", "engine_prompt.py", "request_fields.py", "text_codec.py", "word_lists.py",
)  # fmt: skip
_SHARED = {
    "tensorrt_llm_bls": (*_PROMPT_FILES, "answer.py", "stop_text.py"),
    "preprocessing": _PROMPT_FILES,
    "postprocessing": ("text_codec.py",),
}
_OFF = (
    "context_logits", "generation_logits", "guided_decoding", "kv_retention", "lora", "multimodal",
    "speculative",
)  # fmt: skip
_ON = ("bad_words", "chat", "log_probs", "perf_metrics", "sequences", "usage")
_FLAGS = re.compile(r"true|false", re.IGNORECASE)


def setup(name: str) -> dict[str, Any]:
    """`setup.json` of a fixture."""
    data: dict[str, Any] = json.loads((FIXTURES / name / "setup.json").read_text())
    return data


def configs(name: str) -> dict[str, Any]:
    """{folder: ModelConfig message} of a fixture's repository, by Triton's own message."""
    return {
        path.parent.name: text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
        for path in sorted((FIXTURES / name / "repo").glob("*/config.pbtxt"))
    }


def _filled(config: Any) -> dict[str, str]:
    """Parameters that somebody filled in."""
    found = {key: value.string_value for key, value in config.parameters.items()}
    return {key: text for key, text in found.items() if "${" not in text}


def write_repository(
    name: str, folder: Path, checkpoint: Path, only: Collection[str] | None = None
) -> None:
    """The fixture's repository with the substitutions of this module's docstring.

    Args:
        checkpoint: Hugging Face folder that both sides compute with.
        only: folders to write; all by default.
    """
    found = configs(name)
    engine = json.loads((FIXTURES / name / "engine/config.json").read_text())["build_config"]
    pre, post = (_filled(found[kind]) for kind in ("preprocessing", "postprocessing"))
    text = {
        "tokenizer_dir": str(checkpoint),
        # Upstream's defaults where nothing is filled in: both true.
        "add_special_tokens": pre.get("add_special_tokens", "true").lower(),
        "skip_special_tokens": post.get("skip_special_tokens", "true").lower(),
    }
    beams = next(
        _filled(c).get("max_beam_width") for c in found.values() if c.backend == "tensorrtllm"
    )
    switches = {**dict.fromkeys(_ON, True), **dict.fromkeys(_OFF, False)}
    ours = {
        "stop_ids": "generation_config",
        "features": json.dumps(switches),
        "max_input_len": str(min(engine["max_input_len"], MAX_SEQ_LEN)),
        "max_seq_len": str(min(engine["max_seq_len"], MAX_SEQ_LEN)),
        "max_beam_width": beams or "1",
        "streaming": str(setup(name)["streaming"]).lower(),
        "stream_interval": "1",
        "engine_calls": "48",
    }
    for where, config in found.items():
        if only is not None and where not in only:
            continue
        place = folder / where / "1"
        place.mkdir(parents=True)
        kind = where if where in _SHARED else config.backend or "ensemble"
        if kind in _SHARED:
            for path in (_TEMPLATES / f"engine/{kind}/1").glob("*.py"):
                shutil.copy2(path, place)
            for shared in _SHARED[kind]:
                shutil.copy2(_TEMPLATES / "shared" / shared, place)
            # Upstream's own default: the model that a BLS model calls when nobody says which.
            names = (
                {"tensorrt_llm_model_name": "tensorrt_llm"} if kind == "tensorrt_llm_bls" else {}
            )
            _set(config, {**names, **_filled(config), **text, **ours})
        elif kind == "tensorrtllm":
            plan = {
                "reference_checkpoint": str(checkpoint),
                "limits": {
                    "max_batch_size": engine["max_batch_size"],
                    "max_num_tokens": engine["max_num_tokens"],
                    "max_seq_len": min(engine["max_seq_len"], MAX_SEQ_LEN),
                    "max_beam_width": engine["max_beam_width"],
                    # The tiny model on the reference runtime needs no more, and blocks cost memory.
                    "tokens_per_block": engine["plugin_config"]["tokens_per_block"],
                },
            }
            (place / "build-plan.json").write_text(json.dumps(plan))
            kept = {
                # The C++ backend reads true and false in any case; the stand-in only as written below.
                key: value.lower() if _FLAGS.fullmatch(value) else value
                for key, value in _filled(config).items()
            }
            kept |= {"gpt_model_path": str(place), "engineroom_runtime": "reference"}
            _set(config, kept)
        (folder / where / "config.pbtxt").write_text(text_format.MessageToString(config))


def _set(config: Any, parameters: Mapping[str, str]) -> None:
    config.parameters.clear()
    for key, value in parameters.items():
        config.parameters[key].string_value = value


# ---- a recorder at the border between model files and reference runtime, the same for both sides
_RECORDER = '''

import json as _json
import os as _os


class _Recording(ReferenceRuntime):
    """Writes what each request gave to the runtime and got from it: one JSON object a line."""

    def submit(self, request, on_chunk):
        ids = validation.prompt_ids(request, self._codec, self._vocabulary, self._max_len)
        made, top = [], request.top_k

        def record(chunk):
            made.extend(chunk.token_ids)
            if chunk.final:
                line = {"prompt": list(ids), "tokens": list(made), "finish": chunk.finish_reason}
                with open(_os.environ["RECORDED"], "a", encoding="utf-8") as file:
                    file.write(_json.dumps(line) + "\\n")
            on_chunk(chunk)

        return super().submit(request, record)


ReferenceRuntime = _Recording
'''


def recording_root(folder: Path) -> Path:
    """A template root whose reference runtime records; all else of it is the shipped one."""
    package = folder / "reference/engineroom_reference"
    shutil.copytree(_TEMPLATES / "reference/engineroom_reference", package)
    runtime = package / "runtime.py"
    runtime.write_text(runtime.read_text() + _RECORDER)
    return folder


class Side:
    """A running server of one side, and what its runtime has computed."""

    def __init__(self, server: TritonServer, record: Path) -> None:
        self.server, self.endpoints, self._record = server, server.endpoints, record

    def recorded(self) -> list[dict[str, Any]]:
        """One object a finished sequence, in order: prompt and answer as token ids, finish reason."""
        if not self._record.exists():
            return []
        return [json.loads(line) for line in self._record.read_text().splitlines()]


@contextlib.contextmanager
def running(repository: Path, logs: Path, roots: tuple[Path, ...]) -> Iterator[Side]:
    """The real tritonserver on a repository, with a recording reference runtime.

    Args:
        logs: folder for the log and the record.
        roots: template roots of the catalog.
    """
    work = work_folder()
    try:
        overlay = recording_root(work / "overlay")
        record = logs / "recorded.jsonl"
        server = TritonServer(
            repository,
            work,
            (*roots, overlay),
            log=logs / "tritonserver.log",
            env={"RECORDED": os.fspath(record)},
        )
        with server:
            server.wait_ready()
            yield Side(server, record)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def stop_together(sides: Iterable[Side]) -> None:
    """Tell all servers to end at once: each takes seconds to unload."""
    for side in sides:
        with contextlib.suppress(ProcessLookupError):
            os.kill(side.server.pid, signal.SIGTERM)
