"""The stand-alone file: what it imports, that it runs alone, and the verb around it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engineroom.names import ExitCode
from engineroom.runner import preflight
from tests.conftest import run_cli, spec_data, write_spec
from tests.doctor.machines import NEW, OLD, Machine

NEEDS = {"gpus": 1, "compute_capability": "9.0", "memory_mib": 81559, "target": "t"}


@pytest.fixture
def built(tmp_path: Path) -> Path:
    path = tmp_path / "preflight.py"
    path.write_text(preflight.build(NEEDS), encoding="utf-8")
    return path


def run(
    path: Path, *argv: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Isolated, without site-packages, in an environment that has nothing but what is given."""
    return subprocess.run(
        [sys.executable, "-I", "-S", str(path), *argv],
        capture_output=True, text=True, env=env or {}, timeout=60, check=False, cwd=path.parent,
    )  # fmt: skip


def test_imports_are_of_the_standard_library(built):
    text = built.read_text(encoding="utf-8")
    tree = ast.parse(text, feature_version=(3, 8))
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            modules.add(str(node.module).split(".")[0])
    assert modules <= set(sys.stdlib_module_names) | {"__future__"}
    assert "subprocess" in modules
    assert not any(
        isinstance(n, ast.Attribute) and n.attr == "import_module" for n in ast.walk(tree)
    )


def test_nothing_newer_than_python_3_8(built):
    """`feature_version` sees syntax only; these are the usual slips beyond it."""
    tree = ast.parse(built.read_text(encoding="utf-8"))
    newer = {"removeprefix", "removesuffix", "is_relative_to", "pairwise", "bit_count", "cache"}
    assert not {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)} & newer
    for node in ast.walk(tree):
        # `X | Y` and `dict[...]` may stand in annotations, which nobody evaluates, and nowhere else.
        if isinstance(node, ast.Assign):
            assert not any(
                isinstance(n, ast.Subscript)
                and getattr(n.value, "id", "") in ("dict", "list", "tuple")
                for n in ast.walk(node.value)
            )
        if isinstance(node, ast.Call):
            assert not any(k.arg in ("strict", "slots", "kw_only") for k in node.keywords)
    assert "from __future__ import annotations" in built.read_text(encoding="utf-8")


def test_it_runs_alone(built):
    done = run(built)
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["schema_version"] == 1
    assert report["verdict"] == "unfit"
    assert report["findings"][0]["code"] == "doctor-no-gpu"
    assert report["findings"][0]["target"] == "t"
    assert done.stderr.startswith("ERROR doctor-no-gpu: the target needs 1 GPU(s)")


def test_it_judges_gpus(built, tmp_path):
    machine = Machine(tmp_path / "m").gpus(1, driver=NEW)
    done = run(built, env=machine.env)
    report = json.loads(done.stdout)
    assert report["machine"]["gpus"][0]["memory_mib"] == 81559
    assert not [f for f in report["findings"] if f["severity"] == "error"]
    assert done.returncode == 0
    other = run(built, env=Machine(tmp_path / "n").gpus(1, cc="8.9").env)
    assert other.returncode == 1
    assert "doctor-gpu-differs" in other.stderr


def test_it_reads_require_cuda_itself(built, tmp_path):
    machine = Machine(tmp_path / "m").gpus(1, driver=OLD, cuda="12.2")
    machine.env["NVIDIA_REQUIRE_CUDA"] = "cuda>=13.1 brand=tesla,driver>=535,driver<536"
    done = run(built, env=machine.env)
    assert done.returncode == 0  # the brand is not known: a warning
    assert "doctor-unknown-require-cuda" in done.stderr
    machine.env["NVIDIA_REQUIRE_CUDA"] = "cuda>=13.1"
    assert run(built, env=machine.env).returncode == 1


def test_exit_codes(built, tmp_path):
    empty = tmp_path / "empty.json"
    empty.write_text("{}")
    assert run(built, "--requirements", str(empty)).returncode == 0
    assert run(built, "--requirements", str(empty), "--require-gpu").returncode == 4
    assert run(built, "--fail-on", "never").returncode == 2
    for bad in ("[]", '{"gpus": "x"}', "{", '{"nonsense": 1}', "[" * 100_000, "\x00"):
        path = tmp_path / "bad.json"
        path.write_text(bad)
        done = run(built, "--requirements", str(path))
        assert done.returncode == 2, bad[:20]
        assert done.stderr.startswith("error: requirements: ")
        assert "Traceback" not in done.stderr
    done = run(built, "--requirements", str(tmp_path / "absent.json"))
    assert (done.returncode, done.stdout) == (2, "")


def test_requirements_replace_what_is_embedded(built, tmp_path):
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"shm_bytes": 2**60, "gpus": 0}))
    report = json.loads(run(built, "--requirements", str(path)).stdout)
    assert [f["code"] for f in report["findings"]] == ["doctor-shm-small"]


def test_hostile_needs_stay_data(tmp_path):
    words = '\'; import os; os._exit(9)\n"""\\ {driver} \u2028 \ud7ff'
    needs = {"sku": words, "gpus": 1, "driver": [{"from": "0", "findings": []}]}
    path = tmp_path / "p.py"
    path.write_text(preflight.build(needs), encoding="utf-8")
    assert run(path).returncode == 1
    (value,) = (
        node.value
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "EMBEDDED"
    )
    assert json.loads(ast.literal_eval(value)) == needs


def test_unknown_needs_are_not_written():
    with pytest.raises(ValueError, match="unknown key `gpu`"):
        preflight.build({"gpu": 1})


# ---- the verb


def cli(*argv: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    done = run_cli("doctor", *argv, cwd=folder, **env)
    assert "Traceback" not in done.stderr + done.stdout
    return done


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    return write_spec(tmp_path, spec_data())


def test_verb_looks_at_this_machine(tmp_path):
    done = cli("--format", "json", folder=tmp_path, HF_TOKEN="hf_verysecret")
    report = json.loads(done.stdout)
    assert set(report) == {"schema_version", "run_id", "machine", "findings", "verdict", "targets"}
    assert report["machine"]["packages"]["engineroom"]
    assert report["machine"]["hf_token_set"] is True
    assert "verysecret" not in done.stdout
    assert report["targets"] == {}


def test_verb_judges_every_target(spec):
    # No GPU even where the tests run on a host that has some: an nvidia-smi that lists none.
    machine = Machine(spec.parent / "m").smi("echo 'No devices were found'; exit 6")
    env = {**machine.env, "PYTHONPATH": str(without_nvml(spec.parent))}
    done = cli("-f", str(spec), "--format", "json", folder=spec.parent, **env)
    assert done.returncode == ExitCode.FINDINGS
    report = json.loads(done.stdout)
    assert set(report["targets"].values()) == {"unfit"}
    assert {f["target"] for f in report["findings"] if f["code"] == "doctor-no-gpu"} == set(
        report["targets"]
    )
    table = cli("-f", str(spec), folder=spec.parent, **env)
    assert "ERROR doctor-no-gpu  `machine.gpus`  (llmapi-l4-tp1pp1-26-07)" in table.stdout
    assert table.stdout.endswith("verdict: unfit\n")


def without_nvml(folder: Path) -> Path:
    (folder / "stub").mkdir()
    (folder / "stub/pynvml.py").write_text("raise ImportError('not here')\n")
    return folder / "stub"


def test_verb_exit_codes(spec):
    stub = str(without_nvml(spec.parent))
    machine = Machine(spec.parent / "m").smi("echo 'No devices were found'; exit 6")
    env = {**machine.env, "PYTHONPATH": stub}
    folder = spec.parent
    assert cli(folder=folder, **env).returncode == 0
    done = cli("--require-gpu", folder=folder, **env)
    assert (done.returncode, "--require-gpu" in done.stderr) == (ExitCode.MISSING, True)
    for argv in (
        ("-f", "absent.yaml"),
        ("-f", str(spec), "--target", "nope"),
        ("--target", "x"),
        ("--stack", "99.99"),
        ("--write-preflight", "p.py"),
        ("-f", str(spec), "--write-preflight", "p.py"),
        ("--fail-on", "info"),
    ):
        assert cli(*argv, folder=folder, **env).returncode == ExitCode.USAGE, argv
    assert not (folder / "p.py").exists()
    gpus = Machine(folder / "g").gpus(1)
    env = {**gpus.env, "PYTHONPATH": stub}
    assert cli("--require-gpu", folder=folder, **env).returncode == 0


def test_verb_writes_the_file(spec):
    folder = spec.parent
    target = "engine-h100-sxm-tp1pp1-26-07"
    done = cli(
        "-f", str(spec), "--target", target, "--write-preflight", "out/p.py", "--format", "json",
        folder=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["target"] == target
    path = folder / "out/p.py"
    assert [p.name for p in path.parent.iterdir()] == ["p.py"]
    machine = Machine(folder / "m").gpus(1, driver=OLD)
    report = json.loads(run(path, env=machine.env).stdout)
    codes = [f["code"] for f in report["findings"]]
    assert "doctor-driver-needs-compat-package" in codes
    assert {f["target"] for f in report["findings"]} == {target}
    wrong = cli("-f", str(spec), "--target", target, "--write-preflight", ".", folder=folder)
    assert wrong.returncode == ExitCode.USAGE


def test_only_an_earlier_preflight_file_is_replaced(spec):
    """`--write-preflight engineroom.yaml` would write over the spec, and a rename over a device."""
    target = ("--target", "llmapi-l4-tp1pp1-26-07")
    before, pipe = spec.read_text(), spec.parent / "pipe"
    os.mkfifo(pipe)
    for path in (spec, pipe):
        result = run_cli("doctor", "-f", str(spec), *target, "--write-preflight", str(path))
        assert result.returncode == 2, result.stderr
    assert spec.read_text() == before
    assert pipe.is_fifo()
    path = spec.parent / ("p" * 255)  # no room for a longer temporary name
    for _ in range(2):
        result = run_cli("doctor", "-f", str(spec), *target, "--write-preflight", str(path))
        assert result.returncode == 0, result.stderr
    assert "Machine check" in path.read_text()


def test_a_reader_that_goes_away_changes_nothing(built):
    """Into a full disk, and into a pipe that nobody reads."""
    for sink in ("/dev/full", None):
        read, write = os.pipe()
        os.close(read)
        with open(sink or write, "wb") as out:  # noqa: PTH123
            done = subprocess.run(
                [sys.executable, str(built)],
                stdout=out, stderr=subprocess.PIPE, timeout=60, check=False,
            )  # fmt: skip
        assert done.returncode in (0, 1)
        assert b"Traceback" not in done.stderr
        if sink:
            os.close(write)
