"""What a request carries beside its sampling parameters."""

from dataclasses import dataclass


@dataclass
class LoRARequest:
    """An adapter, by name, integer id and folder (tensorrt_llm/executor/request.py)."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    lora_ckpt_source: str = "hf"
