"""`matrix show`: five-valued cells with sources, for SKUs, formats, lanes and versions."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from engineroom.catalog import Catalog
from engineroom.errors import UsageError
from engineroom.names import ExitCode, LaneName, Support
from engineroom.planning.support_matrix import Cell, Query, lane_support, support_matrix
from tests.conftest import run_cli


@pytest.fixture(scope="module")
def everything(catalog: Catalog) -> list[Cell]:
    return support_matrix(catalog, Query())


def one(catalog: Catalog, **query: object) -> Cell:
    cells = support_matrix(catalog, Query(**query))  # type: ignore[arg-type]
    assert len(cells) == 1
    return cells[0]


def test_default_shows_the_newest_stack_of_each_lane(everything: list[Cell]):
    shown = {(c.lane, c.stack, c.tensorrt_llm) for c in everything}
    assert shown == {(LaneName.LLMAPI, "26.07", "1.2.1"), (LaneName.ENGINE, "26.07", "1.2.1")}
    assert {"8.0", "8.9", "9.0", "10.0", "12.0"} <= {c.compute_capability for c in everything}
    assert {"weights", "kv_cache"} == {c.axis for c in everything}


def test_every_cell_has_a_source_and_one_of_five_values(everything: list[Cell]):
    assert len(everything) > 200
    for cell in everything:
        assert isinstance(cell.support, Support)
        assert cell.source
        assert cell.confidence in ("high", "medium", "low")
    keys = {(c.lane, c.axis, c.format, c.compute_capability) for c in everything}
    assert len(keys) == len(everything)


def test_columns_carry_every_sku(everything: list[Cell], catalog: Catalog):
    listed = {sku: c.compute_capability for c in everything for sku in c.skus}
    assert listed == {s.id: s.compute_capability for s in catalog.skus.values()}


@pytest.mark.parametrize(
    ("sku", "fmt", "expected"),
    [
        ("a100-sxm-80gb", "fp8", Support.NO),
        ("l4", "fp8", Support.YES),
        ("h100-sxm", "fp8", Support.YES),
        ("h100-sxm", "nvfp4", Support.NO),
        ("b200-sxm", "nvfp4", Support.YES),
    ],
)
def test_known_verdicts(catalog: Catalog, sku: str, fmt: str, expected: Support):
    cell = one(catalog, skus=(sku,), lane=LaneName.LLMAPI, weights=fmt, stack="26.07")
    assert cell.support is expected
    assert cell.skus == (sku,)
    assert (
        catalog.precision_support(
            LaneName.LLMAPI, "1.2.1", "weights", fmt, catalog.sku(sku).compute_capability
        )[0]
        is expected
    )


def test_a_compute_capability_stands_for_its_skus(catalog: Catalog):
    cell = one(catalog, skus=("9.0",), lane=LaneName.ENGINE, kv_cache="fp8")
    assert (cell.axis, cell.support) == ("kv_cache", Support.YES)
    assert {"h100-sxm", "h200-sxm"} <= set(cell.skus)
    assert "l4" not in cell.skus


def test_unheard_of_capability_is_unknown_or_no(catalog: Catalog):
    """Unknown is never yes: no table has a row for it."""
    assert one(catalog, skus=("99.0",), lane=LaneName.LLMAPI, weights="fp8").support in (
        Support.UNKNOWN,
        Support.NO,
    )


def test_a_lane_that_is_gone_is_no_with_the_lane_rows_source(catalog: Catalog):
    cells = support_matrix(catalog, Query(lane=LaneName.ENGINE, trtllm="1.4.0rc4"))
    assert {c.support for c in cells} == {Support.NO}
    assert {c.stack for c in cells} == {"trtllm-1.4.0rc4"}
    assert all("PR #15918" in c.source for c in cells)
    assert all(c.reason and "removed after the 1.2 line" in c.reason for c in cells)
    other = support_matrix(catalog, Query(lane=LaneName.LLMAPI, trtllm="1.4.0rc4"))
    assert Support.YES in {c.support for c in other}


def test_lane_support_without_row_or_contract_is_unknown(catalog: Catalog):
    # Between the end of the 1.2 line and 1.4 nothing is recorded.
    assert lane_support(catalog, LaneName.ENGINE, "1.3.0")[0] is Support.UNKNOWN
    assert lane_support(catalog, LaneName.ENGINE, "1.2.0")[0] is Support.YES


def test_an_unknown_lane_is_never_yes(catalog: Catalog, monkeypatch: pytest.MonkeyPatch):
    query = Query(lane=LaneName.LLMAPI, weights="bf16", skus=("9.0",), stack="26.07")
    assert [c.support for c in support_matrix(catalog, query)] == [Support.YES]
    monkeypatch.setattr(
        "engineroom.planning.support_matrix.lane_support",
        lambda *args: (Support.UNKNOWN, "nobody knows", "nothing found"),
    )
    assert [c.support for c in support_matrix(catalog, query)] == [Support.UNKNOWN]


def test_the_contract_wins_over_the_table(catalog: Catalog, monkeypatch: pytest.MonkeyPatch):
    contract = catalog.contract("1.2.1")
    assert contract is not None
    gone = {**contract.data["triton"], "families": {"llmapi": True}}
    changed = type(contract)("1.2.1", {**contract.data, "triton": gone}, "")
    monkeypatch.setattr(Catalog, "contract", lambda self, version: changed)
    support, _, source = lane_support(catalog, LaneName.ENGINE, "1.2.1")
    assert support is Support.NO
    assert "deploy/contracts/trtllm/1.2.1.json" in source


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"skus": ("h100-smx",)}, "`h100-sxm`"),
        ({"weights": "pf8"}, "`fp8`"),
        ({"kv_cache": "nvfp"}, "`nvfp4`"),
        ({"stack": "26.70"}, "`26.07`"),
        ({"stack": "26.07", "trtllm": "1.2.1"}, "give one of the two"),
        ({"trtllm": "one"}, "1.2.1"),
    ],
)
def test_unknown_names_answer_with_the_nearest(
    catalog: Catalog, query: dict[str, object], words: str
):
    with pytest.raises(UsageError) as caught:
        support_matrix(catalog, Query(**query))  # type: ignore[arg-type]
    assert words in str(caught.value.hint)


# ---- command line
def test_json():
    done = run_cli(
        "matrix", "show", "--sku", "l4", "--sku", "a100-sxm-80gb", "--lane", "llmapi",
        "--weights", "fp8", "--kv-cache", "fp8", "--stack", "26.07", "--format", "json",
    )  # fmt: skip
    assert done.returncode == ExitCode.OK, done.stderr
    data = json.loads(done.stdout)
    assert data["schema_version"] == 1
    found = {(c["axis"], c["skus"][0]): c["support"] for c in data["cells"]}
    assert found["weights", "l4"] == "yes"
    assert found["weights", "a100-sxm-80gb"] == "no"
    assert set(found) == {(a, s) for a in ("weights", "kv_cache") for s in ("l4", "a100-sxm-80gb")}
    assert all(c["source"] for c in data["cells"])


def test_table_has_numbered_sources():
    done = run_cli("matrix", "show", "--lane", "llmapi", "--weights", "nvfp4")
    assert done.returncode == ExitCode.OK, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "llmapi lane, TensorRT-LLM 1.2.1 (Triton 26.07)"
    row = next(line for line in lines if line.startswith("  nvfp4"))
    head = next(line for line in lines if "8.9" in line).split()
    verdicts = row.replace(" [", "[").split()[1:]
    assert len(verdicts) == len(head)
    assert verdicts[head.index("8.9")].startswith("no[")
    number = verdicts[head.index("10.0")].removeprefix("yes")
    assert any(line.startswith(f"{number} ") for line in lines)


@pytest.mark.parametrize("args", [("--sku", "h100"), ("--stack", "1.2.1"), ("--weights", "int3")])
def test_bad_arguments(args: tuple[str, str]):
    done = run_cli("matrix", "show", *args)
    assert done.returncode == ExitCode.USAGE
    assert "fix:" in done.stderr
    assert "Traceback" not in done.stderr


def test_show_starts_light():
    """Rich, Jinja and the pipeline would double its start."""
    code = (
        "import sys; from engineroom.cli.main import run; code = run(['matrix', 'show']);"
        "print([m for m in ('rich', 'jinja2', 'engineroom.pipeline', 'tritonclient', 'numpy')"
        " if m in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"


def test_a_reader_that_goes_away_is_no_finding():
    """`matrix show | head`: exit code 1 would say that there are findings."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as out:
        done = subprocess.run(
            [sys.executable, "-m", "engineroom", "matrix", "show"],
            stdout=out, stderr=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
