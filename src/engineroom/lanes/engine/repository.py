"""Layout and template variables of the engine lane's repository, from spec and contract.

`serving.fronts` decides which models clients can call: `bls` is one model, `ensemble` is three
(preprocessing and postprocessing beside it). Encoder-decoder and media are left out: their tensors are
declared where upstream's fronts have them, and refused by name.
"""

from __future__ import annotations

import json
from typing import Any

from engineroom.lanes.base import RepositoryRequest, stop_ids_text
from engineroom.lanes.engine import fronts
from engineroom.lanes.engine.build import build_flags
from engineroom.lanes.engine.engine_config import family as engine_family
from engineroom.lanes.engine.engine_config import tensorrt_llm
from engineroom.lanes.launch import python_threads
from engineroom.render import TreeLayout
from engineroom.spec import Target
from engineroom.spec.serving import Serving

DRAFT_MODEL = "tensorrt_llm_draft"
"""Name of the draft's model folder, which a user adds beside `tensorrt_llm`."""
# Of the server's `thread-pool-size`: were all held by requests that wait for the engine, running streams
# would stand still and nothing could be cancelled.
_SPARE_THREADS = 8
_ENGINE = "tensorrt_llm"
_PROMPT_FILES = (
    "chat_template.py", "engine_prompt.py", "request_fields.py", "text_codec.py", "word_lists.py",
)  # fmt: skip
_SHARED = {
    fronts.BLS: (*_PROMPT_FILES, "answer.py", "stop_text.py"),
    fronts.PREPROCESSING: _PROMPT_FILES,
    fronts.POSTPROCESSING: ("text_codec.py",),
}
_OWN = {
    fronts.BLS: (
        "draft.py",
        "engine.py",
        "extras.py",
        "job.py",
        "lines.py",
        "model.py",
        "workers.py",
    ),
    fronts.PREPROCESSING: ("model.py",),
    fronts.POSTPROCESSING: ("model.py",),
    fronts.ENSEMBLE: ("README.txt",),
    _ENGINE: ("README.txt",),
}
_FRONT_MODELS = {
    "bls": (fronts.BLS,),
    "ensemble": (fronts.PREPROCESSING, fronts.POSTPROCESSING, fronts.ENSEMBLE),
}


def models(serving: Serving) -> tuple[str, ...]:
    """Folders of the repository."""
    return (_ENGINE, *(model for front in serving.fronts for model in _FRONT_MODELS[front]))


def layout(serving: Serving) -> TreeLayout:
    """Files of the repository and what they are made from."""
    chosen = models(serving)
    verbatim = {
        f"{model}/1/{name}": f"engine/{model}/1/{name}" for model in chosen for name in _OWN[model]
    }
    verbatim |= {
        f"{model}/1/{name}": f"shared/{name}" for model in chosen for name in _SHARED.get(model, ())
    }
    return TreeLayout(
        templates={f"{model}/config.pbtxt": f"engine/{model}/config.pbtxt.j2" for model in chosen},
        verbatim=verbatim,
    )


def variables(request: RepositoryRequest) -> dict[str, Any]:
    """Variables of the templates in `model_repo_templates/engine/`.

    Raises:
        UsageError: the contract does not describe a front that `serving.fronts` names.
    """
    lane_request = request.lane_request
    serving = lane_request.spec.serving
    family = engine_family(lane_request)
    engine = tensorrt_llm(request, family[_ENGINE])
    parameters, on = _prompt_parameters(request), features(serving)
    text = {"tokenizer_dir": request.tokenizer_dir, "skip_special_tokens": "true"}
    result: dict[str, Any] = {
        "trtllm_version": lane_request.contract.version,
        "max_batch_size": lane_request.target.limits.max_batch_size,
        "decoupled": serving.streaming,
        _ENGINE: engine,
    }
    if "bls" in serving.fronts:
        result["bls"] = {
            **fronts.bls(lane_request, family, on),
            "parameters": {**parameters, **text, **_bls_parameters(serving, lane_request.target)},
        }
    if "ensemble" in serving.fronts:
        result |= {
            "preprocessing": {**fronts.preprocessing(family), "parameters": parameters},
            "postprocessing": {
                **fronts.postprocessing(family, on),
                "parameters": {**text, "streaming": "true" if serving.streaming else "false"},
            },
            "ensemble": fronts.ensemble(family, engine, on),
        }
    return result


def _prompt_parameters(request: RepositoryRequest) -> dict[str, str]:
    """Parameters of whatever checks requests and tokenizes prompts."""
    lane_request = request.lane_request
    serving = lane_request.spec.serving
    return {
        "tokenizer_dir": request.tokenizer_dir,
        "add_special_tokens": "true",
        "stop_ids": stop_ids_text(serving.stop_ids),
        "features": json.dumps(features(serving), sort_keys=True),
        "max_input_len": build_flags(lane_request)[0]["--max_input_len"][0],
        "max_seq_len": str(lane_request.max_seq_len or 0),
        "max_beam_width": str(lane_request.target.limits.max_beam_width),
    }


def features(serving: Serving) -> dict[str, bool]:
    """Switches of the spec as a model file takes them: the parameter `features`."""
    values = {name: getattr(serving.features, name) for name in type(serving.features).model_fields}
    return {name: value not in (None, False, "off") for name, value in values.items()}


def _bls_parameters(serving: Serving, target: Target) -> dict[str, str]:
    speculative = serving.features.speculative
    drafts = speculative is not None and speculative.mode == "draft_target"
    return {
        "stream_interval": str(serving.stream_interval),
        "engine_calls": str(python_threads(target) - _SPARE_THREADS),
        "tensorrt_llm_model_name": _ENGINE,
        "tensorrt_llm_draft_model_name": DRAFT_MODEL if drafts else "",
    }
