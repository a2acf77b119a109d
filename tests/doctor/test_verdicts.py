"""Verdicts: each rule with a machine that breaks it and one that just does not."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engineroom.catalog import Catalog
from engineroom.checks import machine as software
from engineroom.checks.machine import InstalledPackage
from engineroom.checks.require_cuda import evaluate
from engineroom.errors import UsageError
from engineroom.names import Severity
from engineroom.pipeline import open_job
from engineroom.runner.machine import facts, judge
from tests.conftest import ROOT, SMOLLM2_CONFIG, spec_data, write_spec
from tests.doctor.machines import GIB, MIB, MIDDLE, NEW, OLD, Machine, no_nvml, nvml

# The package shows the function of this name; the test needs the module.
pipeline = importlib.import_module("engineroom.pipeline.doctor")

NEEDS = {
    "target": "t", "sku": "h100-sxm", "gpus": 2, "compute_capability": "9.0", "memory_mib": 81559,
    "memory_basis": "nvml", "products": ["NVIDIA-H100-80GB-HBM3"], "weights_mib": 40000, "shm_bytes": GIB, "weights_bytes": 70 * GIB,
    "host_memory_bytes": 100 * GIB, "disk_bytes": {"workspace": 140 * GIB}, "cuda": "13.1.0.036",
    "driver": [{"from": "0", "findings": [
        {"code": "doctor-driver-needs-compat-package", "severity": "warn", "reason": "driver {driver}"}]},
        {"from": "590.44.01", "findings": []}],
}  # fmt: skip


def found(machine: Machine, **changes: Any) -> dict[str, dict[str, Any]]:
    needs = judge.needs_from({k: v for k, v in {**NEEDS, **changes}.items() if v is not None})
    items = judge.judge(facts.collect(machine.roots()), needs, require=evaluate)
    for item in items:
        assert item["reason"]
        assert item["key"].startswith("machine.")
        assert item["target"] == "t"
    return {item["code"].removeprefix("doctor-"): item for item in items}


def hang(m: Machine) -> None:
    m.seconds = 0.2
    m.smi("/bin/sleep 30")


def env(m: Machine, **values: str) -> None:
    m.gpus(2).env.update(values)


def image(m: Machine, driver: str, *, compat: bool = False) -> None:
    m.gpus(2, driver=driver, cuda="12.2").put("root/.dockerenv", "")
    m.put("root/usr/local/cuda/version.json", "{}").env["CUDA_VERSION"] = "13.1.0"
    if compat:
        m.put("root/usr/local/cuda/compat/libcuda.so.590.44.01", "")


def no_shm(m: Machine) -> None:
    m.gpus(2)
    (m.folder / "dev/shm").rmdir()


def no_disk(m: Machine) -> None:
    m.gpus(2).sizes[""] = SimpleNamespace()  # type: ignore[assignment]


REQUIRE = "cuda>=13.1 brand=tesla,driver>=535,driver<536"

# code: (severity, what breaks it, words of the reason, the sound neighbour)
CASES: dict[str, tuple[str, Callable[[Machine], Any], str, Callable[[Machine], Any]]] = {
    "no-gpu": ("error", lambda m: None, "needs 2 GPU(s)", lambda m: m.gpus(2)),
    "unknown-gpus": ("warn", hang, "did not answer within 0.2 s", lambda m: m.gpus(2)),
    "too-few-gpus": ("error", lambda m: m.gpus(1), "needs 2 GPUs here, 1 are", lambda m: m.gpus(2)),
    "gpu-differs": (
        "error", lambda m: m.gpus(2, cc="8.9", name="NVIDIA L4"), "NVIDIA L4, compute capability 8.9",
        lambda m: m.gpus(2),
    ),
    "gpu-memory": (
        "error", lambda m: m.gpus(2, memory=40960), "40960 MiB", lambda m: m.gpus(2, memory=81000),
    ),
    "gpu-product": (
        "warn", lambda m: m.gpus(2, name="NVIDIA H200", memory=143771), "`NVIDIA H200` with 143771 MiB",
        lambda m: m.gpus(2, name="NVIDIA-H100-80GB-HBM3"),
    ),
    "unknown-gpu-memory": (
        "warn", lambda m: m.gpus(2, memory="[N/A]", free="[N/A]"), "h100-sxm has 81559 MiB",
        lambda m: m.gpus(2),
    ),
    "unknown-compute-capability": (
        "warn", lambda m: m.gpus(2, cc="[N/A]"), "compute capability", lambda m: m.gpus(2),
    ),
    "unknown-gpu-state": (
        "warn",
        lambda m: m.driver(NEW).put("proc/driver/nvidia/gpus/0/information", "Model: x\n").put(
            "proc/driver/nvidia/gpus/1/information", "Model: x\n"),
        f"driver {NEW} is loaded", lambda m: m.gpus(2),
    ),
    "mig-parallel": (
        "error", lambda m: m.gpus(2, mig="Enabled"), "spreads over 2 GPUs", lambda m: m.gpus(2),
    ),
    "gpu-memory-taken": (
        "error", lambda m: m.gpus(2, free=39999), "39999 of 81559 MiB are free",
        lambda m: m.gpus(2, free=40001),
    ),
    "gpu-busy": (
        "warn", lambda m: m.gpus(2, free=70000), "11559 of 81559 MiB are in use",
        lambda m: m.gpus(2, free=80000),
    ),
    "unknown-driver": (
        "warn", lambda m: m.gpus(2, driver="what").driver("what"), "not known", lambda m: m.gpus(2),
    ),
    "driver-needs-compat-package": (
        "warn", lambda m: m.gpus(2, driver=OLD), f"driver {OLD}", lambda m: m.gpus(2, driver=NEW),
    ),
    "compat-missing": (
        "error", lambda m: image(m, OLD), "this image has none", lambda m: image(m, OLD, compat=True),
    ),
    "require-cuda": (
        "error", lambda m: env(m, NVIDIA_REQUIRE_CUDA="cuda>=13.2", CUDA_VERSION="13.1.0"),
        "`cuda>=13.2` does not hold",
        lambda m: env(m, NVIDIA_REQUIRE_CUDA="cuda>=13.1", CUDA_VERSION="13.1.0"),
    ),
    "require-cuda-met": (
        "info", lambda m: env(m, NVIDIA_REQUIRE_CUDA="cuda>=13.1", CUDA_VERSION="13.1.0"),
        "`cuda>=13.1` holds",
        # Another image's condition says nothing about the target's.
        lambda m: env(m, NVIDIA_REQUIRE_CUDA="cuda>=13.1", CUDA_VERSION="12.9.1"),
    ),
    "unknown-require-cuda": (
        "warn", lambda m: env(m, NVIDIA_REQUIRE_CUDA="cuda>=14 brand=tesla", CUDA_VERSION="13.1"),
        "cannot be decided", lambda m: env(m, NVIDIA_REQUIRE_CUDA="cuda>=14", CUDA_VERSION="13.1"),
    ),
    "shm-small": (
        "error", lambda m: m.gpus(2).shm(64 * MIB), "64 MiB, the default of Docker",
        lambda m: m.gpus(2).shm(GIB),
    ),
    "unknown-shm": ("warn", no_shm, "not known", lambda m: m.gpus(2)),
    "memory-small": (
        "warn", lambda m: m.gpus(2).memory(64 * GIB), "less than the 70.0 GiB of weights",
        lambda m: m.gpus(2).memory(100 * GIB),
    ),
    "unknown-memory": (
        "warn", lambda m: m.gpus(2).put("proc/meminfo", "?"), "not known", lambda m: m.gpus(2),
    ),
    "disk-small": (
        "error", lambda m: m.gpus(2).disk(139 * GIB), "139.0 GiB free; about 140.0 GiB",
        lambda m: m.gpus(2).disk(140 * GIB),
    ),
    "memlock": (
        "warn", lambda m: m.gpus(2).limits(memlock="65536"), "limited to 0 MiB",
        lambda m: m.gpus(2),
    ),
    "stack": (
        "info", lambda m: m.gpus(2).limits(stack="8388608"), "limited to 8 MiB", lambda m: m.gpus(2),
    ),
    "unknown-ulimits": (
        "warn", lambda m: m.gpus(2).put("proc/self/limits", ""), "not known", lambda m: m.gpus(2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("code", CASES)
def test_rule(code, machine, tmp_path):
    severity, breaks, words, sound = CASES[code]
    breaks(machine)
    item = found(machine)[code]
    assert item["severity"] == severity
    assert words in item["reason"]
    assert item["fix"] or code.startswith("driver-")
    assert "engineroom" not in item["source"]
    neighbour = Machine(tmp_path / "neighbour")
    sound(neighbour)
    assert code not in found(neighbour)


def test_a_sound_machine_has_nothing_to_say(machine):
    assert found(machine.gpus(2)) == {}


OTHER_CODES = {
    "unknown-disk", "mig-on", "package-pin", "tensorrt-llm-stub", "unknown-sku",
    "tensorrt-llm-differs", "no-container-toolkit", "python", "unknown-size",
}  # fmt: skip
"""Tested by their own tests below."""


def test_every_code_has_a_case():
    """Codes as they stand in the source, whoever yields them."""
    codes = set()
    for name in ("runner/machine/judge.py", "checks/machine.py", "pipeline/doctor.py"):
        tree = ast.parse((ROOT / "src/engineroom" / name).read_text())
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            called = getattr(node.func, "id", "")
            if called in ("finding", "_finding", "Finding") and node.args:
                if isinstance(node.args[0], (ast.Name, ast.Subscript)):
                    continue  # made elsewhere: `_require` chooses among three of the table above
                codes |= {
                    part.value.removeprefix("doctor-")
                    for part in ast.walk(node.args[0])
                    if isinstance(part, ast.Constant) and isinstance(part.value, str)
                }
    codes -= {""}
    assert len(codes) > 25
    assert codes - set(CASES) - OTHER_CODES == set()


# ---- what the table cannot say


def test_one_gpu_in_mig_mode_is_a_warning(machine):
    codes = found(machine.gpus(1, mig="Enabled"), gpus=1, shm_bytes=0)
    assert codes["mig-on"]["severity"] == "warn"
    assert "mig-on" not in found(machine.gpus(2, mig="Disabled"), gpus=1)


def test_disk_that_cannot_be_asked(machine):
    def broken(path: str) -> Any:
        raise OSError(5, "I/O error")

    roots = facts.Roots(**{**vars(machine.gpus(2).roots()), "disk": broken})
    codes = [f["code"] for f in judge.judge(facts.collect(roots), NEEDS)]
    assert "doctor-unknown-disk" in codes
    codes = [f["code"] for f in judge.judge(facts.collect(machine.roots()), NEEDS)]
    assert "doctor-unknown-disk" not in codes


@pytest.mark.parametrize(
    ("visible", "short"),
    [
        ("0,1", False),
        ("0", True),
        ("", True),
        ("0,-1,1", True),
        ("GPU-aa,GPU-bb", False),
        ("0,9", True),
    ],
)
def test_cuda_visible_devices(machine, visible, short):
    env(machine, CUDA_VISIBLE_DEVICES=visible)
    assert ("too-few-gpus" in found(machine)) is short


def test_enough_gpus_of_the_right_kind_in_a_mixed_host(machine):
    machine.gpus(3)
    path = machine.folder / "smi.csv"
    lines = path.read_text().splitlines()
    lines[2] = lines[2].replace("9.0, NVIDIA H100 80GB HBM3", "8.9, NVIDIA L4")
    path.write_text("\n".join(lines) + "\n")
    assert "gpu-differs" not in found(machine)
    assert "gpu-differs" in found(machine, gpus=3)


def test_ecc_is_no_other_gpu(machine):
    # A10: 24258 MiB, 23028 with ECC; nothing to stumble over.
    needs = {"gpus": 1, "compute_capability": "8.6", "memory_mib": 24258, "weights_mib": 1}
    assert "gpu-memory" not in found(machine.gpus(1, cc="8.6", memory=23028), **needs)


@pytest.mark.parametrize(("size", "severity"), [(64 * MIB, "error"), (512 * MIB, "warn")])
def test_shm_by_size(machine, size, severity):
    assert found(machine.gpus(2).shm(size))["shm-small"]["severity"] == severity


def test_the_cgroup_limit_counts_when_it_is_tighter(machine):
    machine.gpus(2).put("sys/fs/cgroup/memory.max", str(90 * GIB))
    machine.put("proc/self/cgroup", "0::/\n")
    reason = found(machine)["memory-small"]["reason"]
    assert reason.startswith("the cgroup's limit is 90.0 GiB, below the 100.0 GiB estimated")


def test_require_cuda_wins_over_the_driver_rule(machine):
    image(machine, OLD, compat=True)
    assert "driver-needs-compat-package" in found(machine)
    machine.env["NVIDIA_REQUIRE_CUDA"] = REQUIRE  # driver 535, brand tesla
    codes = found(machine, brand="tesla")
    assert codes["require-cuda-met"]["severity"] == "info"
    assert "driver-needs-compat-package" not in codes
    codes = found(machine, brand="geforce")
    assert codes["require-cuda"]["severity"] == "error"
    assert "driver-needs-compat-package" not in codes


def test_a_met_requirement_across_cuda_majors_still_needs_compat(machine):
    image(machine, OLD)
    machine.env["NVIDIA_REQUIRE_CUDA"] = REQUIRE
    assert "compat-missing" in found(machine, brand="tesla")
    # A driver of the same major line runs it without.
    machine.gpus(2, driver="580.95.05", cuda="13.0").env["NVIDIA_REQUIRE_CUDA"] = "cuda>=13.0"
    assert "compat-missing" not in found(machine)


def test_the_requirement_of_the_stacks_image_is_asked_from_outside(machine):
    machine.gpus(2, driver=NEW, cuda="13.1")
    codes = found(machine, require_cuda="cuda>=13.2", require_cuda_source="image labels")
    assert codes["require-cuda"]["source"] == "image labels"


@pytest.mark.parametrize(
    "bad",
    [
        [], {"gpu": 1}, {"gpus": "2"}, {"gpus": True}, {"gpus": -1}, {"schema_version": 2},
        {"disk_bytes": {"root": 1}}, {"disk_bytes": {"workspace": "1"}}, {"driver": [1]},
        {"driver": [{"from": "x", "findings": []}]}, {"driver": [{"from": "1", "findings": [{}]}]},
        {"driver": [{"from": "1", "findings": [{"code": "x", "severity": "fatal", "reason": ""}]}]},
    ],
)  # fmt: skip
def test_bad_needs(bad):
    with pytest.raises(ValueError, match=r"."):
        judge.needs_from(bad)


@pytest.mark.parametrize(
    ("severity", "code", "fails"),
    [
        ("error", "doctor-x", (True, True, True)),
        ("warn", "doctor-x", (False, True, True)),
        ("info", "doctor-unknown-x", (False, False, True)),
        ("info", "doctor-x", (False, False, False)),
    ],
)
def test_fail_on(severity, code, fails):
    item = [{"severity": severity, "code": code}]
    assert tuple(judge.fails(item, level) for level in ("error", "warn", "unknown")) == fails


# ---- software


def pins(*packages: InstalledPackage) -> list[str]:
    return [f.reason for f in software.pins(packages)]


def test_pins_are_read_from_the_packages_themselves():
    modelopt = InstalledPackage(
        "nvidia-modelopt", "0.47.0", ('transformers<5.15,>=4.57; extra == "hf"', "numpy")
    )
    pytriton = InstalledPackage("nvidia-pytriton", "0.7.0", ("numpy<2.0.0,>=1.21", "bad req !!"))
    good = (InstalledPackage("transformers", "5.14.1"), InstalledPackage("numpy", "1.26.4"))
    assert pins(modelopt, pytriton, *good) == []
    assert pins(modelopt, InstalledPackage("transformers", "5.15.0")) == [
        "transformers 5.15.0 is installed; nvidia-modelopt 0.47.0 asks for <5.15,>=4.57"
    ]
    assert "asks for <5.15" in pins(modelopt, InstalledPackage("transformers", "4.56.2"))[0]
    (line,) = pins(pytriton, InstalledPackage("numpy", "2.1.0"))
    assert line.startswith("numpy 2.1.0 is installed; nvidia-pytriton 0.7.0 asks for")
    assert pins(pytriton, InstalledPackage("numpy", "not a version")) == []


def test_pins_of_other_extras_and_platforms_do_not_count():
    one = InstalledPackage(
        "torch", "2.8", ('numpy<1; extra == "dev"', 'numpy<1; sys_platform == "x"')
    )
    assert pins(one, InstalledPackage("numpy", "1.26.4")) == []


def test_tensorrt_llm_package():
    def codes(wanted: str | None, *packages: InstalledPackage) -> list[str]:
        return [f.code for f in software.tensorrt_llm(packages, wanted)]

    assert codes("1.2.1") == []
    assert codes("1.2.1", InstalledPackage("tensorrt-llm", "1.2.1", (), True)) == []
    assert codes("1.2.1", InstalledPackage("tensorrt-llm", "1.2.1+cu13", (), None)) == []
    assert codes(None, InstalledPackage("tensorrt-llm", "1.0.0", (), True)) == []
    assert codes("1.2.1", InstalledPackage("tensorrt-llm", "1.2.1", (), False)) == [
        "doctor-tensorrt-llm-stub"
    ]
    assert codes("1.2.1", InstalledPackage("tensorrt-llm", "1.1.0", (), True)) == [
        "doctor-tensorrt-llm-differs"
    ]


@pytest.mark.parametrize(
    ("tools", "container", "gpus", "severity"),
    [
        ({"docker": "/d"}, [], [{}], Severity.WARN),
        ({"podman": "/d"}, [], [], Severity.INFO),
        ({"docker": "/d", "nvidia-ctk": "/n"}, [], [{}], None),
        ({"docker": "/d"}, ["/.dockerenv"], [{}], None),
        ({}, [], [{}], None),
    ],
)
def test_container_toolkit(tools, container, gpus, severity):
    machine = {"tools": tools, "container": container, "gpus": gpus}
    found = list(software.container_toolkit(machine, needs_gpu=True))
    assert [f.severity for f in found] == ([severity] if severity else [])


def test_python_version():
    def codes(version: str, requires: str | None) -> list[str]:
        return [f.code for f in software.python_version({"python": version}, requires)]

    assert codes("3.14.0", ">=3.10,<3.14") == ["doctor-python"]
    assert codes("3.13.2", ">=3.10,<3.14") == []
    assert codes("3.14.0", None) == []


# ---- a spec against a machine


def diagnose(machine: Machine, folder: Path, module: Any = None, **options: Any):
    model = options.pop("model", SMOLLM2_CONFIG)
    targets = options.pop("targets", [{"sku": "h100-sxm", "stack": "26.07"}])
    spec = write_spec(folder, spec_data(model, targets=targets))
    return pipeline.doctor(
        spec, roots=machine.roots(), nvml_module=module or no_nvml(), package_paths=[], **options
    )


def codes(result: pipeline.Diagnosis) -> list[str]:
    return [f.code for f in result.findings]


def test_a_host_that_fits(machine, tmp_path, make_job):
    result = diagnose(machine, tmp_path, nvml(8), model=make_job().local_model)
    assert codes(result) == []
    assert (result.verdict, result.targets) == ("fits", {"llmapi-h100-sxm-tp1pp1-26-07": "fits"})


def test_eight_h100_with_an_old_driver(machine, tmp_path, make_job):
    result = diagnose(machine, tmp_path, nvml(8, driver=OLD), model=make_job().local_model)
    assert codes(result) == ["doctor-driver-needs-compat-package"]
    assert "535.104.05" in result.findings[0].reason
    assert result.findings[0].key == "machine.driver"
    assert result.verdict == "doubtful"
    minor = diagnose(machine, tmp_path, nvml(8, driver=MIDDLE), model=make_job().local_model)
    assert [f.severity for f in minor.findings] == [Severity.INFO]


def test_a_consumer_gpu_with_an_old_driver(machine, tmp_path, make_job):
    module = nvml(1, driver=OLD, memory=24564, name="NVIDIA GeForce RTX 4090")
    module.nvmlDeviceGetCudaComputeCapability = lambda handle: (8, 9)
    targets = [{"sku": "rtx-4090", "stack": "26.07"}]
    result = diagnose(machine, tmp_path, module, model=make_job().local_model, targets=targets)
    assert codes(result) == ["doctor-driver-too-old"]
    assert result.fails("error")


def test_a_larger_gpu_of_the_same_compute_capability(machine, tmp_path, make_job):
    module = nvml(1, name="NVIDIA H200", memory=143771)
    result = diagnose(machine, tmp_path, module, model=make_job().local_model)
    assert codes(result) == ["doctor-gpu-product"]
    assert result.verdict == "doubtful"


def test_a_guessed_product_name_accuses_nobody(machine, tmp_path, make_job):
    module = nvml(1, name="NVIDIA GeForce RTX 3090 OEM", memory=24576)
    module.nvmlDeviceGetCudaComputeCapability = lambda handle: (8, 6)
    targets = [{"sku": "rtx-3090", "stack": "26.07"}]
    result = diagnose(machine, tmp_path, module, model=make_job().local_model, targets=targets)
    assert "doctor-gpu-product" not in codes(result)


def test_sizes_of_a_model_that_is_not_here(machine, tmp_path):
    result = diagnose(machine, tmp_path, nvml(1), model="meta-llama/Llama-3.1-8B")
    assert codes(result) == ["doctor-unknown-size"]
    assert not result.fails("error")
    assert result.fails("unknown")


def test_each_target_has_its_verdict(machine, tmp_path, make_job):
    targets = [
        {"sku": "h100-sxm", "stack": "26.07"},
        {"sku": "b200-sxm", "stack": "26.07", "tensor_parallel": 2},
    ]
    result = diagnose(machine, tmp_path, nvml(1), model=make_job().local_model, targets=targets)
    assert list(result.targets.values()) == ["fits", "unfit"]
    assert result.verdict == "unfit"
    one = diagnose(
        machine, tmp_path, nvml(1), model=make_job().local_model, targets=targets,
        target="llmapi-h100-sxm-tp1pp1-26-07",
    )  # fmt: skip
    assert one.verdict == "fits"


def test_needs_come_from_spec_and_catalog(tmp_path, make_job):
    targets = [{"sku": "l4", "lane": "engine", "stack": "26.07", "tensor_parallel": 2}]
    job = make_job(spec_data(targets=targets))
    needs = pipeline.needs_of(job, job.targets[0], bands=False)
    sku = job.catalog.sku("l4")
    assert needs["gpus"] == 2
    assert needs["shm_bytes"] == GIB
    assert needs["compute_capability"] == "8.9"
    assert needs["memory_mib"] == sku.memory_mib
    # A checkpoint and an engine are written; neither is there yet.
    assert needs["disk_bytes"]["workspace"] == 2 * needs["weights_bytes"]
    assert needs["host_memory_bytes"] > 17 * GIB
    (job.out / "checkpoints/x").mkdir(parents=True)
    (job.out / "checkpoints/x/manifest.json").write_text("{}")
    again = pipeline.needs_of(job, job.targets[0], bands=False)
    assert again["disk_bytes"]["workspace"] == needs["weights_bytes"]
    # A pod writes none of them.
    assert "disk_bytes" not in pipeline.needs_of(job, job.targets[0], bands=True)


def test_a_target_over_several_hosts_needs_one_hosts_share(make_job):
    targets = [{"sku": "h100-sxm", "stack": "26.07", "tensor_parallel": 8, "pipeline_parallel": 2}]
    job = make_job(spec_data(targets=targets))
    assert pipeline.needs_of(job, job.targets[0], bands=False)["gpus"] == 8


def test_stack_instead_of_the_targets_own(machine, tmp_path, make_job):
    model = make_job().local_model
    old = diagnose(machine, tmp_path, nvml(1, driver=OLD), model=model, stack="24.08")
    assert "doctor-driver-needs-compat-package" not in codes(old)
    with pytest.raises(UsageError, match="no Triton release"):
        diagnose(machine, tmp_path, nvml(1), model=model, stack="99.99")


def test_stack_without_a_spec(machine):
    def run(module: Any) -> list[str]:
        return codes(
            pipeline.doctor(
                stack="26.07", roots=machine.roots(), nvml_module=module, package_paths=[]
            )
        )

    assert run(nvml(1, driver=OLD)) == ["doctor-driver-needs-compat-package"]
    assert run(nvml(1, driver=NEW)) == []
    assert run(nvml(1, name="NVIDIA Unheard Of")) == ["doctor-unknown-sku"]
    assert run(no_nvml()) == ["doctor-unknown-sku"]


def test_target_without_a_spec(machine):
    with pytest.raises(UsageError, match="needs a spec"):
        pipeline.doctor(target="x", roots=machine.roots())


def test_bands_say_what_the_rule_says(tmp_path):
    """The data in a pod's file against the rule itself, over drivers of every branch."""
    rows = Catalog()
    for sku in ("h100-sxm", "rtx-4090"):
        for stack in ("24.08", "25.06", "26.07"):
            data = spec_data(SMOLLM2_CONFIG, targets=[{"sku": sku, "stack": stack}])
            job = open_job(write_spec(tmp_path, data))
            context = pipeline._context(job.loaded.spec, job, job.targets[0])
            rule, needs = pipeline._driver_rule(context), {"driver": pipeline._bands(context)}
            judge.needs_from(needs)
            release = rows.stack(stack)
            edges = [str(release.min_driver), str(release.toolkit_driver)]
            for driver in ["450.36.06", "470.256.02", "525.60.12", OLD, "550.54.15", "560.35.05",
                           "570.124.06", "575.51.03", "580.65.05", MIDDLE, NEW, "610.43.02", *edges]:  # fmt: skip
                banded = judge._banded(needs, driver)
                assert [(f["code"], f["reason"]) for f in banded] == [
                    (f["code"], f["reason"]) for f in rule(driver)
                ], (sku, stack, driver)
