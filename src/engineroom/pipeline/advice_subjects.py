"""What a spec asks of a lane, and which rule, contract entry or front speaks about each of it."""

from __future__ import annotations

from engineroom.names import Support
from engineroom.pipeline.job import Job, ResolvedTarget
from engineroom.types import Finding
from engineroom.types.advice import Subject

_NO, _NOT_HERE, _UNKNOWN = Support.NO, Support.NOT_IMPLEMENTED, Support.UNKNOWN
RULES: dict[str, tuple[Subject, Support]] = {
    "multimodal-not-implemented": (Subject.MULTIMODAL, _NOT_HERE),
    "guided-decoding-library-refused": (Subject.GUIDED_DECODING, _NO),
    "unknown-guided-decoding-library": (Subject.GUIDED_DECODING, _UNKNOWN),
    "guided-decoding-tokenizer": (Subject.GUIDED_DECODING, _NOT_HERE),
    "speculative-mode-not-in-lane": (Subject.SPECULATIVE, _NO),
    "speculative-arguments-unknown": (Subject.SPECULATIVE, _UNKNOWN),
    "lora-arguments-unknown": (Subject.LORA, _UNKNOWN),
    "speculative-checkpoint-not-implemented": (Subject.SPECULATIVE, _NOT_HERE),
    "engine-checkpoint-not-implemented": (Subject.CHECKPOINT, _NOT_HERE),
    "lora-on-nvfp4-engine": (Subject.LORA, _NO),
    "context-logits-with-draft-tokens": (Subject.LOGITS, _NO),
    "engine-awq-multiple": (Subject.CHECKPOINT, _NO),
    "engine-nvfp4-padded-scales": (Subject.CHECKPOINT, _UNKNOWN),
    "vllm-format-not-loaded": (Subject.WEIGHTS, _NO),
    "leader-mode-instances": (Subject.PLACEMENT, _NO),
}
"""Finding code of a rule over a target -> what it says of a lane."""
BY_KEY: dict[str, dict[str, Subject]] = {
    "vllm-lane-does-not-carry": {
        "max_beam_width": Subject.BEAM_SEARCH,
        "multimodal": Subject.MULTIMODAL,
        "mode": Subject.SPECULATIVE,
        "adapters": Subject.LORA,
        "lora": Subject.LORA,
        "gpu_device_ids": Subject.PLACEMENT,
    },
    "vllm-lane-does-not-read": {
        "stop_ids": Subject.STOP_WORDS,
        "priority_levels": Subject.PRIORITY,
    },
}
"""The same for codes that several settings share, by the last part of the finding's key: all are a no."""
FRONTS: dict[Subject, str] = {
    Subject.BEAM_SEARCH: "beams",
    Subject.GUIDED_DECODING: "guided decoding: JSON schema, regex, grammar",
    Subject.LORA: "LoRA",
    Subject.LOGITS: "context logits, generation logits",
    Subject.KV_RETENTION: "KV retention priorities",
    Subject.PRIORITY: "request priority",
    Subject.METRICS: "times and KV blocks of a request",
    Subject.STOP_WORDS: "several end ids",
}
"""Subject -> feature of `deploy/support/serving_features.yaml`: what our own models carry."""
ARGUMENTS: dict[Subject, tuple[str, str]] = {
    Subject.BEAM_SEARCH: ("--max_beam_width", "max_beam_width"),
    Subject.LORA: ("--lora_plugin", "lora_config"),
    Subject.LOGITS: ("--gather_generation_logits", "gather_generation_logits"),
    Subject.GUIDED_DECODING: ("trtllm-build", "guided_decoding_backend"),
}
"""Subject -> what the contract must list: a `trtllm-build` flag, an LLM argument."""
MODELS = "the lane's Triton models (deploy/support/serving_features.yaml)"


def asked(job: Job, item: ResolvedTarget) -> dict[Subject, str]:
    """What the spec asks for that not every lane has, with the key that asks.

    Features that are on by default count only where somebody wrote them down.
    """
    serving, limits = job.loaded.spec.serving, item.target.limits
    features = serving.features
    written = features.model_fields_set
    key = "serving.features."
    found = {
        Subject.BEAM_SEARCH: (limits.max_beam_width > 1, "targets[].limits.max_beam_width"),
        Subject.STOP_WORDS: (serving.stop_ids != "generation_config", "serving.stop_ids"),
        Subject.GUIDED_DECODING: (features.guided_decoding != "off", f"{key}guided_decoding"),
        Subject.LORA: (features.lora is not None, f"{key}lora"),
        Subject.SPECULATIVE: (features.speculative is not None, f"{key}speculative.mode"),
        Subject.MULTIMODAL: (features.multimodal is not None, f"{key}multimodal"),
        Subject.LOGITS: (
            features.context_logits or features.generation_logits,
            f"{key}{'context' if features.context_logits else 'generation'}_logits",
        ),
        Subject.KV_RETENTION: (
            "kv_retention" in written and features.kv_retention, f"{key}kv_retention",
        ),
        Subject.METRICS: (
            "perf_metrics" in written and features.perf_metrics, f"{key}perf_metrics",
        ),
        Subject.PRIORITY: (serving.priority_levels > 0, "serving.priority_levels"),
        Subject.PLACEMENT: (len(item.target.gpu_device_ids or ()) > 1, "targets[].gpu_device_ids"),
    }  # fmt: skip
    return {
        subject: text.replace("[]", f"[{item.index}]")
        for subject, (wanted, text) in found.items()
        if wanted
    }


def said_of(finding: Finding) -> tuple[Subject, Support] | None:
    """What a finding says of the lane that the target was taken to have; None: nothing."""
    if finding.code in BY_KEY:
        subject = BY_KEY[finding.code].get(finding.key.rsplit(".", 1)[-1])
        return None if subject is None else (subject, Support.NO)
    return RULES.get(finding.code)
