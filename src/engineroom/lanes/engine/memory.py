"""Host memory that `trtllm-build` takes.

Each rank that is built holds its weights as read from the checkpoint, again in TensorRT's network, and
again in the engine that is written, beside the builder's own libraries. Three builds on one rank that
print "Peak memory usage during Engine building and serialization", as (weights on the GPU, peak on the
host) in MiB:

* Command-R 35B, FP16: 70725, 176260 (NVIDIA/TensorRT-LLM examples/commandr/README.md @ September 2024);
* Gemma 2 9B, FP16: 19386, 40291 (NVIDIA/TensorRT-LLM issue #2324);
* Llama 3 8B, BF16: 15317, 38513 (a user's log of May 2024, address not recorded).

The builder's libraries add 3255 MiB (issue #2451). So 2.5 times the weights and 4 GiB is above each of
them; no build was measured here, and none of a quantized model.
"""

from __future__ import annotations

from math import ceil

from engineroom.lanes.base import LaneRequest
from engineroom.planning import weight_bytes
from engineroom.planning.capacity import rank_weight_bytes

COPIES = 2.5
BUILDER_BYTES = 4 * 2**30


def host_memory_bytes(request: LaneRequest, workers: int) -> int | None:
    """Peak of a build: `workers` ranks at once, each a process with the weights of its rank.

    Returns:
        None when the model's sizes are not known, or it has experts and no tensor shapes were read.
    """
    if request.shape is None:
        return None
    weights = weight_bytes(request.shape, request.weight_recipe, request.spec.precision.group_size)
    if weights is None:
        return None
    target = request.target
    rank = rank_weight_bytes(
        weights,
        request.shape.num_hidden_layers,
        target.tensor_parallel,
        target.pipeline_parallel,
    )
    return workers * (ceil(COPIES * rank) + BUILDER_BYTES)
