"""A second run, wrong engine files, stacks, fronts and `--out`: what `migrate` refuses, and what it says."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engineroom.catalog import Catalog
from engineroom.catalog.migration import load_migration
from engineroom.cli.main import run
from engineroom.errors import UsageError
from engineroom.migration import report
from engineroom.migration.draft import Wishes, draft_spec
from engineroom.migration.fates import settings
from engineroom.migration.setup import Text, read_setup
from engineroom.migration.veil import Veil
from engineroom.pipeline.migrate import _tables, migrate
from engineroom.pipeline.migrate_fields import front_lines
from engineroom.pipeline.migrate_files import locate, read_files
from engineroom.pipeline.migrate_requests import exchanges
from engineroom.runner.files import dump_yaml
from tests.migrate.setups import BLS, engine_json, engine_pbtxt, write_engine, write_repo

CHOSEN = {"sku": "l4"}


def ensemble(name: str, *steps: str) -> str:
    chain = ", ".join(
        f'{{ model_name: "{step}" model_version: -1 input_map {{ key: "a" value: "text_input" }} '
        f'output_map {{ key: "b" value: "text_output" }} }}'
        for step in steps
    )
    return (
        f'name: "{name}"\nplatform: "ensemble"\nmax_batch_size: 8\n'
        'input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
        'output [ { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] } ]\n'
        f"ensemble_scheduling {{ step [ {chain} ] }}\n"
    )


# ---- a second run
def test_what_the_user_changed_is_not_lost(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    repo, out = write_repo(tmp_path / "old"), tmp_path / "new"
    command = ["migrate", str(repo), "--sku", "l4", "--out", str(out)]
    first = run(command)
    spec = (out / "engineroom.yaml").read_text()
    assert run(command) == first
    (out / "engineroom.yaml").write_text(spec + "# mine\n")
    (out / "notes.txt").write_text("remember")
    (out / "empty").mkdir()
    capfd.readouterr()
    assert run(command) == 2
    told = capfd.readouterr().err
    assert "engineroom.yaml was changed" in told
    assert "notes.txt" in told
    assert "empty" in told
    assert "--force" in told
    assert str(out) in told
    assert (out / "engineroom.yaml").read_text() == spec + "# mine\n"
    assert (out / "notes.txt").read_text() == "remember"
    assert run([*command, "--force"]) == first
    assert (out / "engineroom.yaml").read_text() == spec
    assert (out / "notes.txt").read_text() == "remember"
    assert (out / "empty").is_dir()
    (out / "notes.txt").unlink()
    (out / "empty").rmdir()
    (out / "clients.md").unlink()  # nothing to lose
    assert run(command) == first
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new", "old"]


def test_a_changed_report_is_seen(tmp_path: Path, catalog: Catalog):
    repo, out = write_repo(tmp_path / "old"), tmp_path / "new"
    migrate(repo, out=out, catalog=catalog)
    report = json.loads((out / "report.json").read_text())
    assert set(report["written"]) == {p.name for p in out.iterdir()}
    (out / "report.json").write_text(json.dumps({**report, "notes": ["mine"]}))
    with pytest.raises(UsageError, match=r"report\.json was changed"):
        migrate(repo, out=out, catalog=catalog)


def test_force_is_no_leave_for_any_folder(tmp_path: Path, catalog: Catalog):
    repo = write_repo(tmp_path / "old")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/precious").write_text("x")
    with pytest.raises(UsageError, match="not replaced"):
        migrate(repo, out=tmp_path / "home", catalog=catalog, force=True)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda p: p.symlink_to("nowhere"), "is a link to nowhere"),
        (lambda p: p.write_text("x"), "not replaced"),
    ],
)
def test_out_that_is_no_folder(make, told, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    out = tmp_path / "my out"
    make(out)
    repo = write_repo(tmp_path / "old")
    for given in (out, out / "below"):
        assert run(["migrate", str(repo), "--out", str(given)]) == 2
        err = capfd.readouterr().err
        assert str(given) in err
        assert "--out" in err
        assert "fix:" in err
        assert given != out or told in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["my out", "old"]


def test_a_link_to_a_folder_stays_one(tmp_path: Path, catalog: Catalog):
    repo, real, out = write_repo(tmp_path / "old"), tmp_path / "real", tmp_path / "link"
    real.mkdir()
    out.symlink_to("real")
    for _ in range(2):
        migrate(repo, out=out, catalog=catalog)
    assert out.is_symlink()
    assert (real / "report.md").is_file()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "old", "real"]


# ---- an engine's config.json
@pytest.mark.parametrize(
    ("number", "key"),
    [("NaN", "build_config.plugin_config.x"), ("-Infinity", "build_config.plugin_config.x"),
     ("1e999", "build_config.plugin_config.x")],
)  # fmt: skip
def test_no_number_is_named(number: str, key: str, tmp_path: Path, catalog: Catalog):
    folder = write_engine(tmp_path / "engine", build_config={"plugin_config": {"x": "@"}})
    file = folder / "config.json"
    file.write_text(file.read_text().replace('"@"', number))
    with pytest.raises(UsageError, match="no JSON number") as caught:
        migrate(write_repo(tmp_path / "old"), engine=folder, out=tmp_path / "new", catalog=catalog)
    assert caught.value.where is not None
    assert str(caught.value.where) == f"{file.as_posix()}: `{key}`"
    assert not (tmp_path / "new").exists()


WRONG: tuple[Any, ...] = (
    7, -1, 0, 1.5, True, None, "", "x", "\ud800", [], [[]], [{}], {}, {"": {}}, {"a": [1]}, 10**30, "a\nb|`",
)  # fmt: skip


BASE = engine_json(
    pretrained_config={
        "architecture": "LlamaForCausalLM", "dtype": "float16", "producer": {"name": "modelopt", "version": "0.1"},
        "mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1}, "num_hidden_layers": 2,
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "group_size": 128},
    },
    build_config={
        "plugin_config": {"lora_plugin": "float16", "paged_kv_cache": True, "gemm_plugin": None},
        "lora_config": {"lora_target_modules": ["attn_q"], "max_lora_rank": 8, "lora_dir": ["/a"]},
        "speculative_decoding_mode": 2, "max_draft_len": 3, "auto_parallel_config": {"cluster_key": "L4"},
        "gather_context_logits": True, "strongly_typed": True, "max_input_len": 100,
    },
)  # fmt: skip


def _mutated(share: int) -> Iterator[tuple[tuple[str, ...], Any, str]]:
    """(place, value, text) of engine configs with one value replaced; of all, every `share`th."""
    every = ((place, wrong) for place in _places(BASE, ()) for wrong in WRONG)
    for place, wrong in itertools.islice(every, 0, None, share):
        data = copy.deepcopy(BASE)
        _set(data, place, wrong)
        yield place, wrong, json.dumps(data)


def test_any_engine_config_is_read_or_refused(tmp_path: Path, catalog: Catalog):
    """Values of each place replaced by wrong types: a report, or one clear error; never a fault."""
    repo = write_repo(tmp_path / "old", {"tensorrt_llm": engine_pbtxt(), "tensorrt_llm_bls": BLS})
    configs = read_files(repo, None, None, None, None)[0]
    fates, release = load_migration(catalog), catalog.stack("26.07")
    wishes = Wishes(
        model=None, sku=catalog.sku("l4"), stack="26.07", release=release, name=None, dataset="x",
        locate=lambda text: locate(text, ()), folder=lambda _: None,
    )  # fmt: skip
    tables, count = None, 0
    for place, wrong, text in _mutated(3):
        count += 1
        try:
            setup, _ = read_setup(replace(configs, engine=Text("config.json", text)), fates)
        except UsageError:
            assert len(place) == 1, (place, wrong)
            continue
        draft = draft_spec(setup, catalog, wishes)
        if tables is None:
            tables = _tables(setup, catalog, release, draft)
        veil = Veil(setup)
        rows = veil.settings(settings(draft, tables))
        assert len(rows) == len(setup.leaves)
        told = (setup, rows, draft.missing, draft.notes, ())
        json.dumps(report.as_json(*told), allow_nan=False)
        veil.page(report.as_markdown(*told)).encode()
        dump_yaml(veil.data(draft.spec)).encode()
        exchanges(setup, draft.spec, front_lines(setup, catalog))
    assert count > 150


@pytest.mark.full
def test_migrate_takes_any_engine_config(tmp_path: Path, catalog: Catalog):
    """The same through the whole verb, `check` included, for every value and place."""
    repo = write_repo(tmp_path / "old", {"tensorrt_llm": engine_pbtxt(), "tensorrt_llm_bls": BLS})
    engine = write_engine(tmp_path / "engine")
    for place, wrong, text in _mutated(1):
        (engine / "config.json").write_text(text)
        try:
            migrate(repo, engine=engine, out=tmp_path / "new", catalog=catalog, sku="l4")
        except UsageError:
            assert len(place) == 1, (place, wrong)


def test_deep_nesting_is_refused(tmp_path: Path, catalog: Catalog):
    folder = write_engine(tmp_path / "engine", build_config={"plugin_config": "@"})
    for deep in ('{"a":' * 300 + "1" + "}" * 300, "[" * 300 + "]" * 300):
        (folder / "config.json").write_text(json.dumps(engine_json(x="@")).replace('"@"', deep))
        with pytest.raises(UsageError, match="nested deeper"):
            migrate(write_repo(tmp_path / "old"), engine=folder, out=tmp_path / "new", catalog=catalog)  # fmt: skip


def _places(value: Any, path: tuple[Any, ...]) -> Any:
    for key, item in value.items():
        yield (*path, key)
        if isinstance(item, dict):
            yield from _places(item, (*path, key))


def _set(data: Any, place: tuple[Any, ...], value: Any) -> None:
    for key in place[:-1]:
        data = data[key]
    data[place[-1]] = value


@pytest.mark.parametrize(
    ("plugin", "script", "has"),
    [
        ("float16", "", True), ("auto", "", True), (None, "", False), ("disable", "", False), (7, "", False),
        ("absent", "trtllm-build --lora_plugin disable", False), ("absent", "trtllm-build --lora_plugin auto", True),
        ("absent", "trtllm-build --lora_plugin auto --lora_plugin disable", False),
        (None, "trtllm-build --lora_plugin auto", False),
    ],
)  # fmt: skip
def test_adapters_are_shown_for_engines_that_take_them(
    plugin: Any, script: str, has: bool, tmp_path: Path, catalog: Catalog
):
    bls = BLS.replace(
        "output [", 'input [ { name: "lora_task_id" data_type: TYPE_UINT64 dims: [ 1 ] optional: true } ]\noutput [', 1
    )  # fmt: skip
    repo = write_repo(tmp_path / "old", {"tensorrt_llm": engine_pbtxt(), "tensorrt_llm_bls": bls})
    plugins = {} if plugin == "absent" else {"lora_plugin": plugin}
    engine = write_engine(tmp_path / "engine", build_config={"plugin_config": plugins})
    (tmp_path / "b.sh").write_text(script + "\n")
    done = migrate(repo, engine=engine, build_script=tmp_path / "b.sh", out=tmp_path / "o", catalog=catalog)  # fmt: skip
    shown = exchanges(done.setup, done.spec, front_lines(done.setup, catalog))
    assert any(item.id.endswith("-lora") for item in shown) is has


# ---- the new stack
@pytest.mark.parametrize(
    ("stack", "why", "fix"),
    [
        ("26.7", "no Triton release `26.7`", "26.07"), ("25.99", "no Triton release `25.99`", "25."),
        ("0.16.0", "cannot be the new side", "26.07"), ("1.0.99", "no contract of TensorRT-LLM 1.0.99", "1.2.1"),
        ("vllm-0.24.0", "names a vLLM version", "26.07"),
    ],
)  # fmt: skip
def test_a_stack_that_is_none(stack: str, why: str, fix: str, tmp_path: Path, catalog: Catalog):
    with pytest.raises(UsageError) as caught:
        migrate(write_repo(tmp_path / "old"), out=tmp_path / "new", stack=stack, catalog=catalog)
    assert why in caught.value.message
    assert fix in (caught.value.hint or "")
    assert str(caught.value.where) == "`--stack`"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("stack", ["1.2.1", "v1.2.1", "trtllm-1.2.1"])
def test_a_version_with_a_contract_is_one(stack: str, tmp_path: Path, catalog: Catalog):
    done = migrate(write_repo(tmp_path / "old"), out=tmp_path / "new", stack=stack, catalog=catalog, sku="l4")  # fmt: skip
    assert done.spec["targets"][0]["stack"] == {"trtllm": "1.2.1"}


# ---- fronts
def test_models_that_reach_no_engine_are_no_fronts(tmp_path: Path, catalog: Catalog):
    other = engine_pbtxt().replace('"tensorrt_llm"', '"tensorrt_llm_draft"')
    onnx = 'name: "resnet"\nbackend: "onnxruntime"\nmax_batch_size: 8\n'
    z_bls = BLS.replace("tensorrt_llm_bls", "z_bls") + (
        'parameters: { key: "tensorrt_llm_model_name" value: { string_value: "tensorrt_llm_draft" } }\n'
    )
    repo = write_repo(
        tmp_path / "old",
        {
            "tensorrt_llm": engine_pbtxt(), "tensorrt_llm_draft": other, "resnet": onnx,
            "tensorrt_llm_bls": BLS, "z_bls": z_bls,
            "ensemble": ensemble("ensemble", "tensorrt_llm"), "outer": ensemble("outer", "ensemble"),
            "over_bls": ensemble("over_bls", "tensorrt_llm_bls"),
            "pictures": ensemble("pictures", "resnet"), "drafts": ensemble("drafts", "tensorrt_llm_draft"),
        },
    )  # fmt: skip
    done = migrate(repo, out=tmp_path / "new", catalog=catalog, sku="l4")
    assert [m.name for m in done.setup.fronts] == [
        "tensorrt_llm_bls",
        "ensemble",
        "outer",
        "over_bls",
    ]
    text = done.paths["clients"].read_text()
    for name in ("pictures", "drafts", "z_bls", "resnet"):
        assert name not in text
