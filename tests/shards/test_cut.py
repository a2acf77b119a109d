"""Cutting checkpoints of random bits: what the ranks hold is the whole, and nothing is cut that must not be."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from engineroom.catalog import Catalog
from engineroom.errors import UsageError
from engineroom.planning.rank_parts import Layout, stage_layers
from engineroom.runner.trtllm_shards import cut
from tests.shards import synthetic
from tests.shards.assemble import (
    CONTRACT,
    Tensors,
    assemble,
    built_shapes,
    form_of,
    read_ranks,
)

FORMATS = ("fp8", "awq", "nvfp4", "bf16")


def sharded(
    tmp_path: Path, catalog: Catalog, tp: int, pp: int, config: dict[str, Any], made: Tensors
) -> tuple[dict[str, Any], list[Tensors]]:
    source = synthetic.write(tmp_path / "whole", config, made)
    target = tmp_path / f"tp{tp}pp{pp}"
    cut(source, target, catalog.trtllm_checkpoint, Layout(tp, pp))
    return read_ranks(target)


def assert_equal(one: Tensors, other: Tensors) -> None:
    assert one.keys() == other.keys()
    for name, (dtype, array) in one.items():
        assert dtype == other[name][0], name
        np.testing.assert_array_equal(array, other[name][1], name)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("tp", "pp"), [(t, p) for t in (1, 2, 4) for p in (1, 2, 3)])
def test_the_ranks_together_are_the_whole(tmp_path, catalog, name, tp, pp):
    config = synthetic.config(name)
    made = synthetic.tensors(config)
    written, ranks = sharded(tmp_path, catalog, tp, pp, config, made)
    assert written["mapping"] == {"world_size": tp * pp, "tp_size": tp, "pp_size": pp}
    assert {**written, "mapping": 0, "rank": 0} == {**config, "mapping": 0, "rank": 0}
    assert_equal(assemble(written, ranks), made)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("heads", "kv", "tp"), [(8, 1, 8), (8, 2, 8), (8, 4, 8), (4, 1, 2), (8, 2, 4)])  # fmt: skip
def test_kv_heads_are_copied_where_ranks_exceed_them(tmp_path, catalog, name, heads, kv, tp):
    config = synthetic.config(
        name, num_attention_heads=heads, num_key_value_heads=kv, hidden_size=128,
        intermediate_size=256,
    )  # fmt: skip
    made = synthetic.tensors(config)
    written, ranks = sharded(tmp_path, catalog, tp, 1, config, made)
    # The contract's words: KV head i is on the ranks i * copies .. (i + 1) * copies - 1, once each.
    rows = 16 // (2 if name == "awq" else 1)
    whole = made["transformer.layers.1.attention.qkv.weight"][1].reshape(heads + 2 * kv, rows, -1)
    for rank, tensors in enumerate(ranks):
        part = tensors["transformer.layers.1.attention.qkv.weight"][1]
        part = part.reshape(heads // tp + 2, rows, -1)
        own = rank * kv // tp
        np.testing.assert_array_equal(part[-2], whole[heads + own])
        np.testing.assert_array_equal(part[-1], whole[heads + kv + own])
    assert_equal(assemble(written, ranks), made)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (4, 1), (4, 2), (2, 3)])
def test_each_rank_has_the_shapes_that_are_built(tmp_path, catalog, name, tp, pp):
    """Against the layer sizes of `trtllm-build`, packed as the contract says; and nothing is missing."""
    config = synthetic.config(name, num_hidden_layers=5, vocab_size=42)
    written, ranks = sharded(tmp_path, catalog, tp, pp, config, synthetic.tensors(config))
    for rank, tensors in enumerate(ranks):
        shapes = built_shapes(written, rank // tp)
        assert {n for n in tensors if n.endswith(".weight") and "norm" not in n} - {
            "transformer.ln_f.weight"
        } == set(shapes)
        for weight, (output, width) in shapes.items():
            module = weight.removesuffix(".weight")
            for part, form in form_of(written, weight, set(tensors)).items():
                if part == "bias":
                    continue
                group = written["quantization"].get("group_size", 1)
                counts = {"output": output, "output/2": output // 2, "input": width,
                          "input/2": width // 2, "input/group": width // group, "1": 1}  # fmt: skip
                dtype, array = tensors[f"{module}.{part}"]
                assert array.shape == tuple(counts[a] for a in form["axes"]), (module, part)
                assert dtype == {"model": "BF16"}.get(form["dtype"], form["dtype"])


def test_layers_are_shared_as_upstream_does():
    """torch.tensor_split: the first stages have one more (NVIDIA/TensorRT-LLM PR #4399)."""
    for layers, stages in ((3, 2), (61, 8), (80, 4), (7, 7), (32, 1)):
        ours = [list(part) for part in stage_layers(layers, stages)]
        assert ours == [p.tolist() for p in np.array_split(np.arange(layers), stages)]
    assert [len(part) for part in stage_layers(61, 8)] == [8] * 5 + [7] * 3


def test_what_is_outside_the_layers_is_on_its_stage(tmp_path, catalog):
    config = synthetic.config("fp8")
    _, ranks = sharded(tmp_path, catalog, 2, 3, config, synthetic.tensors(config))
    for rank, tensors in enumerate(ranks):
        outside = {name for name in tensors if ".layers." not in name}
        assert outside == {
            0: {"transformer.vocab_embedding.weight"}, 1: set(),
            2: {"transformer.ln_f.weight", "lm_head.weight"},
        }[rank // 2]  # fmt: skip


def test_a_vocabulary_that_does_not_divide_is_padded_with_zeros(tmp_path, catalog):
    config = synthetic.config("fp8", vocab_size=41)
    made = synthetic.tensors(config)
    written, ranks = sharded(tmp_path, catalog, 4, 1, config, made)
    assert written["vocab_size"] == 41
    for name in ("transformer.vocab_embedding.weight", "lm_head.weight"):
        assert [rank[name][1].shape for rank in ranks] == [(11, 64)] * 4
        np.testing.assert_array_equal(ranks[3][name][1][:8], made[name][1][33:])
        assert not ranks[3][name][1][8:].any()


def test_a_shared_embedding_is_the_head_of_the_last_stage(tmp_path, catalog):
    config = synthetic.config("fp8", share_embedding_table=True)
    made = synthetic.tensors(config, head=False)
    written, ranks = sharded(tmp_path, catalog, 2, 1, config, made)
    assert written["share_embedding_table"] is True
    assert all("lm_head.weight" not in rank for rank in ranks)
    written, ranks = sharded(tmp_path, catalog, 2, 2, config, made)
    assert written["share_embedding_table"] is False
    whole = assemble(written, ranks)
    np.testing.assert_array_equal(
        whole.pop("lm_head.weight")[1], made["transformer.vocab_embedding.weight"][1]
    )
    assert_equal(whole, made)


@pytest.mark.parametrize("name", FORMATS)
def test_a_bias_follows_its_output(tmp_path, catalog, name):
    """That of qkv is cut with its rows; that of a row-parallel layer is added after the sum: whole."""
    config = synthetic.config(name)
    made = synthetic.tensors(config, bias=True)
    written, ranks = sharded(tmp_path, catalog, 4, 1, config, made)
    assert ranks[0]["transformer.layers.0.attention.qkv.bias"][1].shape == (3 * 16,)
    assert ranks[3]["transformer.layers.0.attention.dense.bias"][1].shape == (64,)
    assert_equal(assemble(written, ranks), made)


def test_other_readers_read_the_files(tmp_path, catalog):
    """Hugging Face's own reader: order, alignment and offsets are as it wants them."""
    config = synthetic.config("nvfp4")
    made = synthetic.tensors(config)
    sharded(tmp_path, catalog, 2, 1, config, made)
    path = tmp_path / "tp2pp1/rank1.safetensors"
    with safe_open(path, "np") as file:
        assert len(list(file.keys())) == len(made)
        weight = file.get_tensor("transformer.layers.2.mlp.proj.weight")
    whole = made["transformer.layers.2.mlp.proj.weight"][1]
    np.testing.assert_array_equal(weight, whole[:, whole.shape[1] // 2 :])
    assert (tmp_path / "tp2pp1/NOTICE").read_text() == "terms\n"


# ---- refusals: one clear error, and no rank is written
NARROW = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_size": 8}
REFUSALS: list[tuple[str, dict[str, Any], dict[str, Any], tuple[int, int], str]] = [
    # 64 input columns are 4 groups of 16: no rank of 8 has a whole one.
    ("awq", {**NARROW, "quantization": {"quant_algo": "W4A16_AWQ", "group_size": 16}}, {}, (8, 1),
     "`transformer.layers.0.attention.dense.weights_scaling_factor` has 4 groups of 16 along its input"),
    ("nvfp4", NARROW, {}, (8, 1),
     "`transformer.layers.0.attention.dense.weights_scaling_factor` has 4 groups of 16 along its input"),
    ("fp8", {}, {}, (3, 1), "4 attention heads and 2 KV heads"),
    ("fp8", {"num_attention_heads": 6, "num_key_value_heads": 4, "hidden_size": 96}, {}, (6, 1),
     "6 attention heads and 4 KV heads"),
    ("fp8", {"intermediate_size": 126}, {}, (4, 1), "has 126 values along its output"),
    ("fp8", {}, {}, (1, 4), "more than the 3 layers"),
    ("fp8", {}, {"mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1}}, (2, 1), "sharded already"),
    ("fp8", {}, {"dtype": "float32"}, (2, 1), "neither bfloat16 nor float16"),
    ("fp8", {}, {"quantization": {"quant_algo": "W8A16"}}, (2, 1), "the layout of W8A16 is not known"),
    ("fp8", {}, {"num_attention_heads": None}, (2, 1), "`None` is no size"),
    ("fp8", {}, {"num_hidden_layers": 4}, (2, 1), "layer 3 has no tensors"),
    ("fp8", {}, {"vocab_size": 39}, (2, 1), "`transformer.vocab_embedding.weight` has [40] rows"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "sizes", "said", "layout", "message"), REFUSALS)
def test_what_cannot_be_cut_is_refused(tmp_path, catalog, name, sizes, said, layout, message):
    config = synthetic.config(name, **sizes)
    made = synthetic.tensors(config)
    source = synthetic.write(tmp_path / "whole", {**config, **said}, made)
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        cut(source, tmp_path / "out", catalog.trtllm_checkpoint, Layout(*layout))
    assert caught.value.where.file == (source / "rank0.safetensors").as_posix()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("tensor", "shape", "message"),
    [
        ("transformer.layers.1.mlp.router.weight", (8, 64), "does not say how ranks share"),
        ("transformer.layers.1.mlp.fc.per_channel_scale", (128,), "does not say how ranks share"),
        ("transformer.position_embedding.weight", (64, 64), "does not say how ranks share"),
        (
            "transformer.layers.0.mlp.fc.weight",
            (64, 128),
            "the contract says F8_E4M3 \\[128, 64\\]",
        ),
    ],
)
def test_what_the_contract_does_not_describe_is_refused(tmp_path, catalog, tensor, shape, message):
    config = synthetic.config("fp8")
    made = synthetic.tensors(config)
    made[tensor] = ("F8_E4M3", np.zeros(shape, np.uint8))
    source = synthetic.write(tmp_path / "whole", config, made)
    with pytest.raises(UsageError, match=message):
        cut(source, tmp_path / "out", catalog.trtllm_checkpoint, Layout(2, 1))


@pytest.mark.parametrize("keep", [0, 4, 200, -1])
def test_a_damaged_file_is_refused(tmp_path, catalog, keep):
    config = synthetic.config("fp8")
    source = synthetic.write(tmp_path / "whole", config, synthetic.tensors(config))
    path = source / "rank0.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UsageError):
        cut(source, tmp_path / "out", catalog.trtllm_checkpoint, Layout(2, 1))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_a_checkpoint_without_its_config_is_refused(tmp_path, catalog, text):
    config = synthetic.config("fp8")
    source = synthetic.write(tmp_path / "whole", config, synthetic.tensors(config))
    (source / "config.json").unlink()
    if text is not None:
        (source / "config.json").write_text(text)
    with pytest.raises(UsageError, match=r"config\.json"):
        cut(source, tmp_path / "out", catalog.trtllm_checkpoint, Layout(2, 1))


def test_the_contract_is_one_layout_for_the_engine_lane(catalog):
    """What the code and these tests read is one file; its parts say who says so, and where."""
    contract = catalog.trtllm_checkpoint
    assert contract.versions == ">=0.21,<1.3"
    assert contract.writer.version == "0.47.0"
    assert set(contract.formats) == {"none", "FP8", "W4A16_AWQ", "NVFP4"}
    assert {recipe.quant_algo or "none" for recipe in catalog.weight_recipes.values()} <= set(
        contract.formats
    )
    assert json.loads(json.dumps(CONTRACT))["schema"] == 1
