"""config.json against tensors, tokenizer and kernels."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.codes import declare
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import BITS_PER_ELEMENT, KvCacheFormat, Severity, Topic
from engineroom.reading.files import HfConfig
from engineroom.types import Figure

HEAD_SIZE = declare(
    "head-size-not-multiple-of-8", Topic.MODEL_CONFIG, Severity.ERROR,
    says="the head size is a multiple of 8",
    why="the build finishes and the first request fails: attention kernels load 8 elements at once",
    source="NVIDIA/TensorRT-LLM issue #855 (maintainer)",
)  # fmt: skip
HEAD_SPLIT = declare(
    "hidden-size-not-divisible-by-heads", Topic.MODEL_CONFIG, Severity.ERROR,
    says="without head_dim, hidden_size is a whole number of heads",
    why="the head size is hidden_size / num_attention_heads; a remainder means that a key is wrong",
    source="huggingface/transformers configuration of Llama models (head_dim)",
)  # fmt: skip
VOCAB = declare(
    "vocab-size-differs", Topic.MODEL_CONFIG, Severity.ERROR,
    says="vocab_size agrees with the rows of the embedding",
    why="conversion stops on a shape mismatch; the tensors are right, since they were trained",
    source="NVIDIA/TensorRT-LLM issue #561",
)  # fmt: skip
HEAD_ROWS = declare(
    "head-and-embedding-differ", Topic.MODEL_CONFIG, Severity.ERROR,
    says="the output head and the embedding have the same rows",
    why="both are made with vocab_size rows: one of the two does not load, whatever config.json says",
    source="NVIDIA/TensorRT-LLM issue #561; huggingface/transformers modeling_utils.py (resize_token_embeddings)",
)  # fmt: skip
TOKENIZER_VOCAB = declare(
    "tokenizer-larger-than-vocab", Topic.MODEL_CONFIG, Severity.ERROR,
    says="every id of the tokenizer has a row in the embedding",
    why="an added token's id reads past the table; it is found by the first text that uses it",
    source="NVIDIA/TensorRT-LLM issue #561",
)  # fmt: skip
TENSOR_SHAPE = declare(
    "tensor-shape-differs-from-config", Topic.MODEL_CONFIG, Severity.ERROR,
    says="layer shapes are those that config.json gives",
    why="sums of memory and shards go by config.json, loaders by the tensors",
    source="NVIDIA/TensorRT-LLM issue #5912 (head_dim differs from hidden_size / heads)",
)  # fmt: skip


def _tensor(c: Context, *endings: str) -> tuple[str, tuple[int, ...]] | None:
    """Name and shape of the first listed tensor with one of these endings that is not packed."""
    for tensor in c.evidence.tensors or ():
        plain = (tensor.dtype or "BF16").upper() in ("BF16", "F16", "F32", "F8_E4M3")
        if plain and tensor.name.endswith(endings) and tensor.shape and len(tensor.shape) == 2:
            return tensor.name, tensor.shape
    return None


def _head_size(c: Context, hf: HfConfig) -> tuple[int | None, str | None]:
    """Effective head size, and the tensor that contradicts config.json when one does."""
    size = hf.head_size
    q = _tensor(c, "self_attn.q_proj.weight")
    if q is not None and hf.num_attention_heads and q[1][0] % hf.num_attention_heads == 0:
        by_tensor = q[1][0] // hf.num_attention_heads
        return by_tensor, None if by_tensor == size else q[0]
    return size, None


@about(Topic.MODEL_CONFIG)
def head_size(c: Context) -> Iterator[Answer]:
    hf = c.evidence.hf_config
    if hf is None or hf.head_size is None:
        return
    size, contradicted = _head_size(c, hf)
    assert size is not None
    yield Figure("head_dim", size)
    heads = hf.num_attention_heads
    if heads:
        yield Figure("qkv_rows", (heads + 2 * (hf.kv_heads or heads)) * size)
        yield Figure("o_proj_in_features", heads * size)
    if contradicted:
        yield TENSOR_SHAPE.found(
            c, "hf_config.head_dim",
            f"{contradicted} has rows for heads of {size}, and config.json gives {hf.head_size}"
            + ("" if hf.head_dim else " (hidden_size / num_attention_heads)"),
            f"set head_dim to {size} in config.json",
        )  # fmt: skip
    elif not hf.head_dim and heads and hf.hidden_size and hf.hidden_size % heads:
        yield HEAD_SPLIT.found(
            c, "hf_config.num_attention_heads",
            f"hidden_size {hf.hidden_size} is not a whole number of {heads} heads, and there is no head_dim",
            "correct num_attention_heads, or set head_dim",
        )  # fmt: skip
    elif size % 8:
        yield HEAD_SIZE.found(
            c, "hf_config.head_dim" if hf.head_dim else "hf_config.num_attention_heads",
            f"a head size of {size}"
            + ("" if hf.head_dim else f" ({hf.hidden_size}/{heads})")
            + " is not a multiple of 8; attention kernels do not support it",
            "pad the heads (104 has no fused kernel either; 128 has) and quantize again, or choose another model",
        )  # fmt: skip


@about(Topic.MODEL_CONFIG, Topic.KV_CACHE)
def kv_bytes(c: Context) -> Iterator[Answer]:
    """2 (K and V) x layers x KV heads x head size x bytes, on one rank."""
    size = kv_bytes_per_token(c)
    if size is not None:
        yield Figure("kv_bytes_per_token_per_gpu", size)


def kv_bits(c: Context) -> float:
    """Bits of one KV element: wished, else what the checkpoint says, else 16 (`auto`).

    NVFP4 adds one 8-bit scale for 16 elements.
    """
    wish = c.spec.kv_cache
    if wish in (None, KvCacheFormat.AUTO):
        config = c.evidence.quant_config
        algo = config.quantization.kv_cache_quant_algo if config and config.quantization else None
        found = {"FP8": 8.0, "INT8": 8.0, "NVFP4": 4.5}.get(algo or "")
        return found or 16.0
    return 4.5 if wish is KvCacheFormat.NVFP4 else float(BITS_PER_ELEMENT[str(wish)])


def kv_bytes_per_token(c: Context) -> int | None:
    """KV bytes of one token on the fullest rank; None when a size is not known."""
    hf, bits = c.evidence.hf_config, kv_bits(c)
    if hf is None or not hf.num_hidden_layers or not hf.kv_heads:
        return None
    size, _ = _head_size(c, hf)
    if size is None:
        return None
    heads = max(1, -(-hf.kv_heads // c.tp))
    layers = -(-hf.num_hidden_layers // c.pp)
    return int(2 * layers * heads * size * bits / 8)


@about(Topic.MODEL_CONFIG)
def vocabulary(c: Context) -> Iterator[Answer]:
    hf = c.evidence.hf_config
    if hf is None or hf.vocab_size is None:
        return
    table = _tensor(c, "embed_tokens.weight", "wte.weight", "word_embeddings.weight") or _tensor(
        c, "lm_head.weight"
    )
    tokenizer = c.evidence.tokenizer.vocab_size if c.evidence.tokenizer else None
    rows = table[1][0] if table else None
    yield Figure("vocab_size", rows or max(hf.vocab_size, tokenizer or 0))
    head = _tensor(c, "lm_head.weight")
    if table and head and rows != head[1][0] and not hf.tie_word_embeddings:
        yield HEAD_ROWS.found(
            c, "hf_config.vocab_size",
            f"{table[0]} has {rows} rows and {head[0]} has {head[1][0]}; config.json says {hf.vocab_size}",
            "resize both with resize_token_embeddings, which keeps them equal, and save the model again",
        )  # fmt: skip
    elif table and rows != hf.vocab_size:
        yield VOCAB.found(
            c, "hf_config.vocab_size",
            f"config.json says vocab_size {hf.vocab_size}, and {table[0]} has {rows} rows"
            + (f" (the tokenizer has {tokenizer} ids)" if tokenizer else ""),
            f"set vocab_size to {rows} in config.json; do not cut the tensors",
        )  # fmt: skip
    elif tokenizer and tokenizer > (rows or hf.vocab_size):
        yield TOKENIZER_VOCAB.found(
            c, "hf_config.vocab_size",
            f"the tokenizer has {tokenizer} ids and the model {rows or hf.vocab_size} rows: ids from "
            f"{rows or hf.vocab_size} on have none",
            "use the tokenizer of this model, or resize the embedding and train the new rows",
        )  # fmt: skip


@about(Topic.MODEL_CONFIG)
def widths_agree(c: Context) -> Iterator[Answer]:
    hf = c.evidence.hf_config
    if hf is None:
        return
    for ending, size, axis, key in (
        ("embed_tokens.weight", hf.hidden_size, 1, "hidden_size"),
        ("mlp.gate_proj.weight", hf.intermediate_size, 0, "intermediate_size"),
        ("self_attn.k_proj.weight",
         (hf.kv_heads or 0) * (_head_size(c, hf)[0] or 0), 0, "num_key_value_heads"),
    ):  # fmt: skip
        tensor = _tensor(c, ending)
        if tensor and size and tensor[1][axis] != size:
            yield TENSOR_SHAPE.found(
                c, f"hf_config.{key}",
                f"{tensor[0]} is {list(tensor[1])}, and config.json gives {size} there",
                f"correct {key} in config.json; the tensors are what was trained",
            )  # fmt: skip


RULES = (head_size, kv_bytes, vocabulary, widths_agree)
