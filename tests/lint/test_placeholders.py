"""One placeholder in each possible field of a complete config: refused, ignored or changed.

The last tests ask the real tritonserver, whose own parser reads the same texts.
"""

from __future__ import annotations

import http.client
import re
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from engineroom.catalog import Catalog
from engineroom.checks.evidence import Context, judge
from engineroom.names import Topic
from engineroom.reading import Evidence, model_config
from tests.lint.full_config import Variant, filled_value, full_text, parameter_rows, variants

CATALOG = Catalog()
FULL = full_text()
VARIANTS = list(variants(FULL))


def _some(most: int) -> list[Variant]:
    """At most so many of each field and form; fields that a file has once are all among them."""
    seen: Counter[tuple[str, bool]] = Counter()
    chosen = []
    for variant in VARIANTS:
        seen[(variant.field, variant.bare)] += 1
        if seen[(variant.field, variant.bare)] <= most:
            chosen.append(variant)
    return chosen


SERVED = _some(24)
JUDGED = [v for v in VARIANTS if v.field == "string_value" or v in SERVED]
"""All parameters, and tensors of each kind; `make test-full` has every tensor."""


def lint(text: str, **parts):
    evidence = Evidence.model_validate(
        {
            "triton_configs": [{"path": "tensorrt_llm/config.pbtxt", "text": text}],
            "triton_family": "inflight_batcher_llm",
            "stack": {"tensorrt_llm_version": "1.2.1"},
            **parts,
        }
    )
    return judge(Context(evidence, CATALOG), (Topic.TEMPLATE_FILL,))


def answer(variant: Variant) -> tuple[dict, list]:
    """(the one field that lint speaks of, findings)."""
    findings, figures = lint(variant.text)
    named = {k: v for k, v in figures["fields"].items() if v["placeholder"] == "left_over"}
    assert named
    longest = max(named, key=len)  # a nested field is told under its message's name as well
    return {"field": longest, **named[longest]}, findings


def test_the_filled_file_has_no_finding() -> None:
    assert lint(FULL) == ([], {})
    assert len(model_config.read("x/config.pbtxt", FULL).values) > 300


def _answered(chosen: list[Variant]) -> Counter[str]:
    servers: Counter[str] = Counter()
    for variant in chosen:
        field, findings = answer(variant)
        assert field["line"] == variant.line
        wanted = {"refuses": {"error"}, "ignores": {"ok"}, "changes": {"ok", "warn", "error"}}
        assert field["verdict"] in wanted[field["server"]], field
        assert any("left_over" in f.reason for f in findings)
        assert not variant.bare or field["server"] == "refuses", field
        servers[field["server"]] += 1
    return servers


def test_each_kind_of_field_has_one_answer_with_its_line() -> None:
    servers = _answered(JUDGED)
    assert {v.field for v in JUDGED} == {v.field for v in VARIANTS}
    assert servers["refuses"] > 200
    assert servers["changes"] > 70
    assert servers["ignores"] >= 5


@pytest.mark.full
def test_each_field_has_one_answer_with_its_line() -> None:
    """Every scalar of the file; the counts are of the file, so a field that is missed shows."""
    scalars = len(model_config.read("x/config.pbtxt", FULL).values)
    assert len(VARIANTS) > scalars > 300
    assert sum(_answered(VARIANTS).values()) == len(VARIANTS)


QUOTED = {
    # key -> (server, effective), from the backend's source; see deploy/support/triton_parameters.yaml
    "gpt_model_type": ("refuses", None),
    "gpt_model_path": ("refuses", None),
    "encoder_model_path": ("ignores", None),
    "batch_scheduler_policy": ("changes", "guaranteed_no_evict"),
    "max_beam_width": ("changes", 1),
    "kv_cache_free_gpu_mem_fraction": ("changes", 0.9),
    "enable_kv_cache_reuse": ("changes", True),
    "enable_chunked_context": ("changes", False),
    "exclude_input_in_output": ("changes", False),
    "normalize_log_probs": ("changes", True),
    "lora_cache_max_adapter_size": ("changes", 64),
    "lora_cache_host_memory_bytes": ("changes", 1073741824),
    "guided_decoding_backend": ("ignores", None),
    "tokenizer_dir": ("ignores", None),
    "decoding_mode": ("changes", None),
    "gpu_device_ids": ("changes", None),
}


@pytest.mark.parametrize("key", QUOTED)
def test_quoted_parameter(key: str) -> None:
    server, effective = QUOTED[key]
    value = filled_value(parameter_rows()[key])
    text = re.sub(
        rf'(key: "{key}"\n  value {{\n    string_value: )"{re.escape(value)}"', r'\1"${mine}"', FULL
    )
    assert text != FULL
    _, figures = lint(text)
    field = figures["fields"][f"parameters.{key}"]
    assert field["server"] == server
    assert field.get("effective") == effective
    assert field["placeholder"] == "mine"


def test_a_default_that_surprises_is_a_warning() -> None:
    """Not specified and not filled are one to the server; two defaults are not what clients want."""
    text = FULL
    for key in ("exclude_input_in_output", "normalize_log_probs"):
        text = re.sub(
            rf'(key: "{key}"\n  value {{\n    string_value: )"[^"]*"', r'\1"${mine}"', text
        )
    fields = lint(text)[1]["fields"]
    assert fields["parameters.exclude_input_in_output"]["verdict"] == "warn"
    assert fields["parameters.normalize_log_probs"]["verdict"] == "ok"


def test_an_old_release_has_other_defaults() -> None:
    text = FULL.replace('key: "enable_kv_cache_reuse"\n  value {\n    string_value: "true"',
                        'key: "enable_kv_cache_reuse"\n  value {\n    string_value: "${r}"')  # fmt: skip
    for version, default in (("0.16.0", False), ("0.19.0", True)):
        _, figures = lint(text, stack={"tensorrt_llm_version": version})
        assert figures["fields"]["parameters.enable_kv_cache_reuse"]["effective"] is default


# ---- the real server
LITERALS = (
    # a line of a config, as the server reads it or refuses it
    "max_batch_size: 8", "max_batch_size: 0x10", "max_batch_size: 010", "max_batch_size: 08",
    "max_batch_size: 1.0", "max_batch_size: 1e3", "max_batch_size: -1", "max_batch_size: - 1",
    "max_batch_size: +1", "max_batch_size: 2147483647", "max_batch_size: 2147483648",
    'max_batch_size: "8"', "max_batch_size: true", "max_batch_size: [ 8 ]", "max_batch_size 8",
    "max_batch_size: 8 max_batch_size: 9", "max_batch_size: 8,", "max_batch_size: 8;",
    "max_batch_size: 8 # a comment ${left}", "zzz: 1", 'backend: "a" "b"', "backend: 'absent'",
    'backend: "abs\\x65nt"', 'backend: "a\\qb"', 'backend: "a', "backend: absent",
    'runtime: "a\\tb"', "model_transaction_policy { decoupled: yes }",
    "model_transaction_policy { decoupled: TRUE }", "model_transaction_policy { decoupled: True }",
    "model_transaction_policy { decoupled: t }", "model_transaction_policy { decoupled: f }",
    "model_transaction_policy { decoupled: 1 }", "model_transaction_policy { decoupled: 2 }",
    'model_transaction_policy { decoupled: "true" }', "model_transaction_policy: { decoupled: true }",
    "model_transaction_policy < decoupled: true >", "model_transaction_policy { decoupled: true",
    "model_transaction_policy { decoupled: true >", "model_transaction_policy { decoupled: true } }",
    "model_transaction_policy: true", "instance_group { kind: KIND_CPU }",
    "instance_group { kind: kind_cpu }", "instance_group { kind: CPU }", "instance_group { kind: 2 }",
    "instance_group { kind: 9 }", 'instance_group { kind: "KIND_CPU" }',
    "instance_group [ { kind: KIND_CPU count: 1 } ]", "instance_group [ { kind: KIND_CPU }, ]",
    "instance_group: [ ]", "instance_group { gpus: [ 0, 1 ] }", "instance_group { gpus: 0 gpus: 1 }",
    "instance_group { gpus: [ 0 1 ] }", "{ kind: KIND_CPU }", "parameters { key: 1 }",
    'parameters { key: "a" value { string_value: "b" } }', 'parameters { key: "a" value: "b" }',
    "parameters { key: 'a' value: { string_value: '${x}' } }", 'version_policy { all { } }',
    "version_policy { latest { num_versions: 4294967295 } }",
    "version_policy { latest { num_versions: 4294967296 } }", "version_policy { latest { num_versions: -1 } }",
    "version_policy { specific { versions: [ 1, 9223372036854775807 ] } }",
    "dynamic_batching { }", "dynamic_batching", "dynamic_batching:", "dynamic_batching { preferred_batch_size: [ ${x} ] }",
)  # fmt: skip
REFUSED = "failed to read text proto from"


def _in_model(line: str) -> str:
    """A small sound config with `line` instead of the field that it sets."""
    rest = {
        "name": 'name: "NAME"', "backend": 'backend: "absent"', "max_batch_size": "max_batch_size: 4",
        "input": "input { name: 'a' data_type: TYPE_FP32 dims: [ 1 ] }",
        "output": "output { name: 'b' data_type: TYPE_FP32 dims: [ 1 ] }",
    }  # fmt: skip
    rest.pop(re.split(r"\W", line, maxsplit=1)[0], None)
    return "\n".join([*rest.values(), line]) + "\n"


def _as_model(text: str, name: str) -> str:
    """The name of its folder, and a backend that is not there, so that nothing is loaded."""
    text = re.sub(r'^name: "(tensorrt_llm|NAME)"', f'name: "{name}"', text, flags=re.MULTILINE)
    return text.replace('backend: "tensorrtllm"', 'backend: "absent"', 1)


@pytest.fixture(scope="module")
def loaded():
    """Texts, and for each what the server answered and logged when it was asked to load it."""
    from engineroom.runner.triton import TritonServer

    texts = [_as_model(v.text, f"m_{i}") for i, v in enumerate(SERVED)]
    texts += [_as_model(_in_model(line), f"m_{len(texts) + i}") for i, line in enumerate(LITERALS)]
    with tempfile.TemporaryDirectory(prefix="engineroom-lint-") as scratch:
        folder = Path(scratch)
        for i, text in enumerate(texts):
            (folder / f"repository/m_{i}/1").mkdir(parents=True)
            (folder / f"repository/m_{i}/config.pbtxt").write_text(text, encoding="utf-8")
        server = TritonServer(
            folder / "repository", folder / "work", CATALOG.template_roots, log=folder / "log"
        )
        server._argv += ["--model-control-mode=explicit"]
        answers = []
        with server:
            server.wait_ready(60)
            for i in range(len(texts)):
                connection = http.client.HTTPConnection(
                    "127.0.0.1", server.endpoints.http, timeout=20
                )
                connection.request("POST", f"/v2/repository/models/m_{i}/load", body="{}")
                response = connection.getresponse()
                answers.append((response.status, response.read().decode()))
                connection.close()
        log = (folder / "log").read_text(encoding="utf-8", errors="replace")
    refused = set(re.findall(rf"{REFUSED} \S*/(m_\d+)/config.pbtxt", log))
    return [(t, a, f"m_{i}" in refused) for i, (t, a) in enumerate(zip(texts, answers))], log


@pytest.mark.server
def test_the_server_refuses_the_fields_that_lint_says_it_refuses(loaded) -> None:
    """Both ways: each refusal of its text parser is foretold, and each that is foretold happens."""
    results, _ = loaded
    checked: Counter[tuple[str, bool]] = Counter()
    for variant, (text, _, refused) in zip(SERVED, results):
        config = model_config.read("m/config.pbtxt", text)
        assert bool(config.faults) is refused, (variant.field, variant.line, variant.bare)
        checked[(variant.field, refused)] += 1
    assert sum(n for (_, refused), n in checked.items() if refused) > 180
    assert sum(n for (_, refused), n in checked.items() if not refused) > 60
    assert {"max_batch_size", "decoupled", "preferred_batch_size", "data_type", "dims", "optional",
            "kind", "count", "max_queue_size", "timeout_action", "num_versions", "enable",
            "string_value", "key", "name", "backend"} <= {field for field, refused in checked if refused}  # fmt: skip


@pytest.mark.server
def test_the_server_refuses_the_literals_that_lint_says_it_refuses(loaded) -> None:
    results, log = loaded
    seen = {True: 0, False: 0}
    for line, (text, _, refused) in zip(LITERALS, results[len(SERVED) :]):
        faults = model_config.read("m/config.pbtxt", text).faults
        assert bool(faults) is refused, (line, faults)
        seen[refused] += 1
    assert seen[True] > 25
    assert seen[False] > 20
    assert "Expected integer, got: $" in log


@pytest.mark.server
@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("name", "failed to load"),
        ("backend", "unable to find backend library for backend '${left_over}'"),
    ],
)
def test_the_server_refuses_names_that_it_cannot_resolve(loaded, field: str, told: str) -> None:
    results, _ = loaded
    at = next(i for i, v in enumerate(SERVED) if v.field == field and not v.bare)
    answer_, _ = answer(SERVED[at])
    assert (answer_["field"], answer_["server"]) == (field, "refuses")
    _, (status, body), refused = results[at]
    assert status >= 400
    assert told in body
    assert not refused
