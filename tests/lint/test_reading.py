"""The reader of protobuf text, the table of ModelConfig's fields, and how consumers read values."""

from __future__ import annotations

import time

import pytest

from engineroom.catalog import Catalog
from engineroom.catalog.triton_parameters import load_triton_parameters
from engineroom.errors import CatalogError
from engineroom.reading import cpp_values, model_config, pbtxt
from engineroom.reading.model_config_fields import ENUMS, FIELDS
from tests.lint.full_config import full_text


def read(text: str) -> model_config.ModelConfig:
    return model_config.read("tensorrt_llm/config.pbtxt", text)


# ---- the table against the installed client's descriptors
def test_fields_and_enums_are_those_of_the_proto() -> None:
    model_config_pb2 = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    from google.protobuf.descriptor import FieldDescriptor

    kinds = {v: k[5:].lower() for k, v in vars(FieldDescriptor).items() if k.startswith("TYPE_")}
    fields: dict[str, dict[str, str]] = {}
    enums: dict[str, tuple[str, ...]] = {}
    waiting = [model_config_pb2.ModelConfig.DESCRIPTOR]
    while waiting:
        message = waiting.pop()
        name = message.full_name.removeprefix("inference.")
        if name in fields:
            continue
        fields[name] = {}
        for field in message.fields:
            kind = kinds[field.type]
            if kind == "message":
                kind += ":" + field.message_type.full_name.removeprefix("inference.")
                waiting.append(field.message_type)
            elif kind == "enum":
                enum = field.enum_type.full_name.removeprefix("inference.")
                kind += ":" + enum
                enums[enum] = tuple(v.name for v in field.enum_type.values)
            repeated = field.label == FieldDescriptor.LABEL_REPEATED
            fields[name][field.name] = ("*" if repeated else "") + kind
    assert fields == FIELDS
    assert enums == ENUMS


def test_a_full_config_reads_as_protobuf_reads_it() -> None:
    model_config_pb2 = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    from google.protobuf import text_format

    text = full_text()
    theirs = text_format.Parse(text, model_config_pb2.ModelConfig())
    ours = read(text)
    assert ours.faults == ()
    assert ours.name == theirs.name
    assert ours.max_batch_size == theirs.max_batch_size
    assert ours.decoupled is theirs.model_transaction_policy.decoupled
    assert {k: s.text for k, s in ours.parameters.items()} == {
        k: v.string_value for k, v in theirs.parameters.items()
    }
    assert list(ours.tensors("input")) == [t.name for t in theirs.input]
    assert [g.count for g in ours.instance_groups] == [g.count for g in theirs.instance_group]


# ---- the text format
def test_lines_strings_and_lists() -> None:
    config = read(
        'name: "a" "b"  # {\n\nparameters: {\n key: "k\\"1"\n value: { string_value: \'x\\ty\' };\n}\n'
        "instance_group [\n {\n  count: 2\n  kind : KIND_GPU\n  gpus: [ 0,\n 3 ]\n }\n]\n"
    )
    assert config.faults == ()
    assert config.name == "ab"
    assert config.parameters['k"1'] == pbtxt.Scalar("x\ty", 5, True)
    assert config.instance_groups == (model_config.InstanceGroup(2, "KIND_GPU", (0, 3), 8),)
    assert config.instances == 4


def test_placeholders_keep_their_lines_and_comments_hold_none() -> None:
    config = read('# max: ${no}\nmax_batch_size: ${a}\nbackend: "${b}x${c}"\n')
    assert [(v.path, v.line, v.scalar.placeholders) for v in config.values] == [
        ("max_batch_size", 2, ("a",)),
        ("backend", 3, ("b", "c")),
    ]
    assert config.backend is None
    assert [f.line for f in config.faults] == [2]


def test_an_excerpt_of_a_list_is_named_by_its_fields() -> None:
    text = '  {\n    name: "t"\n    data_type: ${d}\n    dims: [ -1 ]\n  }'
    config = model_config.read("m/config.pbtxt", text, True)
    assert [(v.path, v.kind) for v in config.values][1] == ("input.t.data_type", "enum:DataType")
    assert [f.value.path for f in config.faults if f.value] == ["input.t.data_type"]
    assert any(f.value is None for f in read(text).faults)


@pytest.mark.parametrize(
    "text",
    [
        "{" * 1_000_000, "a{" * 400_000, "a:[" * 300_000, '"' * 1_000_000, "${" * 500_000,
        "$" * 1_000_000, 'name: "' + "\\" * 900_000, "\n" * 1_000_000, "a: 1 " * 200_000,
        "-" * 1_000_000, "}" * 1_000_000, "\x00" * 1_000_000, 'input{name:"x" dims:1}' * 45_000,
        "a: '" * 250_000, "<" * 1_000_000, "]" * 1_000_000, "é" * 500_000,
    ],
    ids=lambda text: repr(text[:6]),
)  # fmt: skip
def test_hostile_texts_end_soon_and_as_data(text: str) -> None:
    started = time.process_time()
    config = read(text)
    assert time.process_time() - started < 1.5  # CPU seconds
    assert len(config.faults) <= 260


# ---- values
@pytest.mark.parametrize(
    ("text", "value"),
    [("8", 8), (" 8 ", 8), ("1e6", 1), ("8192.0", 8192), ("-3x", -3), ("+4", 4), ("0x10", 0), ("", None),
     ("x8", None), ("2147483648", None), ("${a}", None), ("1_000", 1), ("٣", None)],
)  # fmt: skip
def test_stoi(text: str, value: int | None) -> None:
    assert cpp_values.stoi(text) == value


def test_unsigned_numbers_wrap() -> None:
    assert cpp_values.stoull("-1") == 2**64 - 1
    assert cpp_values.stoull("-1", 32) == 2**32 - 1
    assert cpp_values.stoull("18446744073709551616") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("0.9", 0.9), (".9", 0.9), ("0,9", 0.0), ("90%", 90.0), ("1e-1", 0.1), ("1e", 1.0), ("1e99", None),
     ("half", None), ("${f}", None), ("0x10", 16.0)],
)  # fmt: skip
def test_stof(text: str, value: float | None) -> None:
    assert cpp_values.stof(text) == value


def test_lists_and_words() -> None:
    assert cpp_values.device_sets("0,1;2, 3") == [[0, 1], [2, 3]]
    assert cpp_values.device_sets("0,1;") == [[0, 1]]
    assert cpp_values.device_sets("0;x") is None
    assert cpp_values.csv_ints("4096,") == [4096]
    assert [cpp_values.cpp_bool(w) for w in ("True", "1", "tRUE", "yes", "0", "")] == [
        True, True, None, None, False, None,
    ]  # fmt: skip
    assert cpp_values.meant_number("20 GB") == 20e9
    assert cpp_values.meant_number("4,096") == 4096
    assert cpp_values.meant_number("0,9") == 0.9
    assert cpp_values.meant_number("90%") == pytest.approx(0.9)
    assert cpp_values.meant_number("ten") is None


# ---- the data file
def test_parameter_rows_have_sources_and_defaults_by_version() -> None:
    table = load_triton_parameters(Catalog())
    for group in table.groups:
        assert all(len(s) > 20 and "engineroom" not in s for s in group.source)
        assert len({(r.key, r.versions) for r in group.parameters}) == len(group.parameters)
    row = table.rows("tensorrt_llm", "tensorrtllm", "1.2.1")["enable_kv_cache_reuse"]
    assert row.defaults("0.18.2") == (False,)
    assert row.defaults("0.19.0") == (True,)
    assert row.defaults("1.2.0rc1") == (True,)
    assert row.defaults(None) == (False, True)


def test_a_faulty_overlay_is_named(tmp_path) -> None:
    file = tmp_path / "deploy/support/triton_parameters.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(
        "schema_version: 1\ngroups:\n- {family: llmapi, model: m, backend: python, versions: '', source: s,"
        " verified_on: '2026-01-01', confidence: low, parameters: [{key: k, reader: choice_cpp, effect: e}]}\n"
    )
    with pytest.raises(CatalogError, match="accepted"):
        load_triton_parameters(Catalog(tmp_path))
