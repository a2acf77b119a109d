"""The table of field names against the contracts, the lanes, the command line, and itself."""

from __future__ import annotations

import json

import pytest

from engineroom.catalog import Catalog
from engineroom.catalog.request_fields import (
    DIALECTS,
    PARAMETERS,
    contract_names,
    contracts_of,
    load_request_fields,
)
from engineroom.lanes import LANES
from engineroom.planning.field_table import field_table
from tests.conftest import run_cli

CATALOG = Catalog()
TABLE = load_request_fields(CATALOG)
SIDES = {"inputs": TABLE.inputs, "outputs": TABLE.outputs}


def in_contracts(dialect: str, side: str) -> set[str]:
    return set().union(*(contract_names(c, dialect, side) for c in contracts_of(CATALOG, dialect)))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_name_is_in_a_contract_or_ours(dialect, side):
    known = in_contracts(dialect, side)
    if dialect == "vllm" and side == "inputs":
        known |= TABLE.parameters
    for row in SIDES[side]:
        names = row.names(dialect)
        assert not (set(names) - known) or dialect in row.ours, (row.id, dialect, names)
        # `ours` is no way to keep a name that upstream has, too.
        assert dialect not in row.ours or set(names) - known, (row.id, dialect, names)


def test_every_version_has_the_names_that_requests_need():
    """A version that renames one of these breaks the client, and fails here first."""
    for dialect in DIALECTS:
        contracts = contracts_of(CATALOG, dialect)
        assert len(contracts) >= 4, dialect
        for contract in contracts:
            names = TABLE.known(dialect, []) & contract_names(contract, dialect, "inputs")
            for what in ("prompt", "stream"):
                assert TABLE.name(what, dialect, names), (dialect, contract.version, what)
            outputs = contract_names(contract, dialect, "outputs")
            text = next(row for row in TABLE.outputs if row.id == "text")
            assert set(text.names(dialect)) & outputs
            if dialect == "vllm":
                assert PARAMETERS in contract_names(contract, dialect, "inputs")
                assert contract.data["backend"]["guided_decoding_key"] in (
                    TABLE.file.vllm_sampling_parameters
                )
            else:
                assert TABLE.name("max_tokens", dialect, names), (dialect, contract.version)


def test_ids_and_names_are_written_once():
    for side, rows in SIDES.items():
        ids = [row.id for row in rows]
        assert len(ids) == len(set(ids)), side
        for dialect in DIALECTS:
            names = [name for row in rows for name in row.names(dialect)]
            assert len(names) == len(set(names)), (side, dialect)


def test_lanes_use_the_names_of_the_table():
    for lane in LANES.values():
        fields = lane.client
        prefix = f"{fields.parameters_json}." if fields.parameters_json else ""
        assert (fields.prompt,) == TABLE.names("prompt", fields.dialect)
        assert (fields.stream,) == TABLE.names("stream", fields.dialect)
        assert (prefix + fields.max_tokens,) == TABLE.names("max_tokens", fields.dialect)
        assert (fields.messages,) == (TABLE.names("messages", fields.dialect) or (None,))
        assert fields.parts == "delta"
        assert fields.model in fields.models


def test_options_of_the_table_are_options_of_generate():
    shown = run_cli("generate", "--help").stdout
    options = {row.option for row in TABLE.inputs if row.option}
    assert len(options) > 15
    for option in options:
        assert f"{option} " in shown, option


@pytest.mark.parametrize(
    ("name", "dialect", "use", "renamed"),
    [
        ("max_tokens", "llmapi", "sampling_param_max_tokens", True),
        ("sampling_param_max_tokens", "engine", "max_tokens", True),
        ("max_tokens", "vllm", "sampling_parameters.max_tokens", True),
        ("request_output_len", "engine", "max_tokens", True),
        ("--max-tokens", "llmapi", "sampling_param_max_tokens", True),
        ("stop", "engine", "stop_words", True),
        ("stop_words", "llmapi", "sampling_param_stop", True),
        ("stream", "llmapi", "streaming", True),
        ("temprature", "engine", "temperature", False),
        ("sampling_param_temprature", "llmapi", "sampling_param_temperature", False),
        ("beam_width", "llmapi", None, False),
        ("qwertyuiop", "engine", None, False),
    ],
)
def test_hints(name, dialect, use, renamed):
    declared = TABLE.known(dialect, contracts_of(CATALOG, dialect))
    hint = TABLE.hint(name, dialect, declared)
    assert (hint.use, hint.renamed) == (use, renamed), hint.text
    assert hint.use is None or hint.use in hint.text
    assert len(hint.text) < 400


def test_the_table_says_since_when():
    table = field_table(CATALOG)
    lines = {(line.side, line.id): line for line in table.lines}
    lora = {use.name: use.versions for use in lines["inputs", "lora"].names["llmapi"]}
    assert lora == {"lora_name": "from 1.4.0rc4", "lora_id": "from 1.4.0rc4"}
    assert [u.versions for u in lines["inputs", "return_perf"].names["llmapi"]] == ["from 1.0.0"]
    assert [u.versions for u in lines["inputs", "min_tokens"].names["llmapi"]] == ["ours"]
    assert [u.text for u in lines["inputs", "max_tokens"].names["engine"]] == ["max_tokens"]
    # Nothing of a contract is lost: it is in a line or among the names without a counterpart.
    for dialect in DIALECTS:
        for side in SIDES:
            shown = {
                u.name for line in table.lines if line.side == side for u in line.names[dialect]
            }
            shown |= {use.name for use in table.alone.get((side, dialect), ())}
            assert in_contracts(dialect, side) - shown <= {PARAMETERS}, (dialect, side)


def test_the_verb_prints_the_table():
    done = run_cli("matrix", "fields", "--format", "json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    row = next(r for r in data["fields"] if r["id"] == "max_tokens")
    assert row["names"]["core"] == [{"name": "request_output_len", "versions": "all"}]
    assert "| max_tokens | `--max-tokens` | `max_tokens` |" in run_cli("matrix", "fields").stdout
