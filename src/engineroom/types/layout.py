"""Where a checkpoint keeps its TensorRT-LLM layouts."""

from __future__ import annotations


def trtllm_folder(tensor_parallel: int, pipeline_parallel: int) -> str:
    """Folder of a checkpoint for TP x PP: ``trtllm-tp2pp1``, and ``trtllm`` for one rank."""
    if tensor_parallel == pipeline_parallel == 1:
        return "trtllm"
    return f"trtllm-tp{tensor_parallel}pp{pipeline_parallel}"
