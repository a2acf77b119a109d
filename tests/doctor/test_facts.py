"""Facts: read from made-up trees and tools, bounded in time and size."""

from __future__ import annotations

import os
import time

import pytest

from engineroom.runner.machine import facts, packages
from engineroom.runner.machine import nvml as nvml_facts
from tests.doctor.machines import (
    GIB,
    H100,
    NEW,
    OLD,
    Machine,
    NVMLError,
    NVMLError_NotSupported,
    no_nvml,
    nvml,
    package,
)


def collect(machine: Machine, module=None):
    reader = nvml_facts.reader(machine.seconds, module) if module else None
    return facts.collect(machine.roots(), nvml=reader)


def test_a_plain_host(machine):
    m = collect(machine)
    assert m["gpus"] == []
    assert m["gpu_source"] is None
    assert m["driver"] is None
    assert m["container"] == []
    assert m["memory"] == {
        "total_bytes": 512 * GIB,
        "available_bytes": 256 * GIB,
        "cgroup_limit_bytes": None,
    }
    assert m["cpus"] == {"count": 20, "quota": None}
    assert m["limits"] == {"memlock": "unlimited", "stack": 67108864, "nofile": 1048576}
    assert m["shm"]["total_bytes"] == 64 * GIB
    assert m["disks"]["hf_cache"]["path"].endswith("root/.cache/huggingface/hub")


def test_gpus_from_nvidia_smi(machine):
    machine.gpus(8, driver=OLD, cuda="12.2", free=80000)
    m = collect(machine)
    assert len(m["gpus"]) == 8
    assert m["gpus"][7] == {
        "index": 7, "name": H100, "compute_capability": "9.0", "memory_mib": 81559,
        "memory_free_mib": 80000, "mig": False, "brand": None,
    }  # fmt: skip
    assert (m["driver"], m["cuda"], m["gpu_source"]) == (OLD, "12.2", "nvidia-smi")


def test_an_nvidia_smi_before_r510_has_no_compute_cap(machine):
    machine.driver("470.57.02").smi(
        'case "$1" in *compute_cap*) echo \'Field "compute_cap" is not a valid field to query.\'; exit 2;;'
        ' --query*) echo "0, 40960, 40000, 470.57.02, Enabled, NVIDIA A100-SXM4-40GB";; *) echo;; esac'
    )
    (gpu,) = collect(machine)["gpus"]
    assert gpu["compute_capability"] is None
    assert gpu["mig"] is True
    assert gpu["name"] == "NVIDIA A100-SXM4-40GB"


def test_unified_memory_has_no_total(machine):
    machine.smi(
        'case "$1" in --q*) echo "0, [N/A], [N/A], 580.95.05, [N/A], 12.1, NVIDIA GB10";; esac'
    )
    (gpu,) = collect(machine)["gpus"]
    assert (gpu["memory_mib"], gpu["mig"], gpu["compute_capability"]) == (None, False, "12.1")


def test_nvml_comes_first(machine):
    machine.smi("echo must not be asked; exit 1")
    m = collect(machine, nvml(2, mig=(1, 1), name=H100.encode()))
    assert m["gpu_source"] == "nvml"
    assert m["cuda"] == "13.1"
    assert [g["memory_mib"] for g in m["gpus"]] == [81559, 81559]
    assert m["gpus"][1]["mig"] is True
    assert m["gpus"][0]["name"] == H100
    assert m["gpus"][0]["brand"] == "nvidia"


@pytest.mark.parametrize(
    ("answer", "mig"),
    [(NVMLError_NotSupported(), False), (NVMLError("odd"), None), ((0, 1), False)],
)
def test_mig_of_nvml(machine, answer, mig):
    assert collect(machine, nvml(1, mig=answer))["gpus"][0]["mig"] is mig


def test_brands_are_spelled_as_the_container_runtime_does(machine):
    assert collect(machine, nvml(1, brand=9))["gpus"][0]["brand"] == "vcs"
    assert collect(machine, nvml(1, brand=2))["gpus"][0]["brand"] == "tesla"
    assert collect(machine, nvml(1, brand=99))["gpus"][0]["brand"] is None


def test_nvml_without_a_driver_falls_back(machine):
    machine.gpus(1)
    m = collect(machine, no_nvml())
    assert m["gpu_source"] == "nvidia-smi"
    assert m["gpu_problems"] == ["NVML: NVML Shared Library Not Found"]


def test_nvml_that_hangs(machine):
    module = nvml(1)
    module.nvmlInit = lambda: time.sleep(60)
    machine.seconds = 0.2
    started = time.monotonic()
    m = collect(machine, module)
    assert time.monotonic() - started < 5
    assert "no answer within 0.2 s" in m["gpu_problems"][0]


@pytest.mark.parametrize("flavour", ["Open Kernel Module for x86_64", "x86_64 Kernel Module"])
def test_driver_from_proc(machine, flavour):
    assert collect(machine.driver("570.124.06", flavour))["driver"] == "570.124.06"


def test_a_loaded_driver_without_a_tool_is_not_no_gpu(machine):
    assert collect(machine.driver(NEW))["gpus"] is None


def test_gpus_from_proc_have_a_name_only(machine):
    machine.driver(NEW).put(
        "proc/driver/nvidia/gpus/0000:0f:00.0/information", f"Model: \t\t {H100}\nIRQ: 1\n"
    )
    m = collect(machine)
    assert m["gpu_source"] == "proc"
    assert [(g["name"], g["memory_mib"]) for g in m["gpus"]] == [(H100, None)]


def test_a_hanging_nvidia_smi_is_ended_with_its_children(machine, tmp_path):
    machine.seconds = 0.3
    # The child keeps the pipe open: ending nvidia-smi alone would not be enough.
    machine.smi(f'/bin/sleep 300 &\necho $! > "{tmp_path}/pid"\nwait')
    started = time.monotonic()
    m = collect(machine)
    assert time.monotonic() - started < 5
    assert m["gpus"] is None
    assert m["gpu_problems"] == ["nvidia-smi did not answer within 0.3 s"]
    pid = int((tmp_path / "pid").read_text())
    until = time.monotonic() + 5
    while time.monotonic() < until and _runs(pid):
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_an_endless_nvidia_smi(machine):
    machine.smi("while :; do echo 0123456789012345678901234567890123456789; done")
    started = time.monotonic()
    m = collect(machine)
    assert time.monotonic() - started < 5
    assert m["gpus"] is None
    assert m["gpu_problems"] == ["nvidia-smi printed too much"]


@pytest.mark.parametrize(
    ("script", "gpus", "words"),
    [
        ("echo hello", None, "something else than a list"),
        ("printf '\\377\\376\\033[31m, x'", None, "something else than a list"),
        ("true", None, "printed nothing"),
        ("echo 'No devices were found'; exit 6", [], None),
        ("echo 'has failed because it could not communicate'; exit 9", [], "exit code 9"),
        ("echo 'GPU is lost'; exit 15", None, "exit code 15"),
        ("kill -9 $$", None, "exit code -9"),
    ],
)
def test_odd_answers_of_nvidia_smi(machine, script, gpus, words):
    m = collect(machine.smi(script))
    assert m["gpus"] == gpus
    text = " ".join(m["gpu_problems"])
    assert words is None or words in text
    assert text.isprintable()


def test_an_nvidia_smi_that_is_no_program(machine):
    path = machine.folder / "bin/nvidia-smi"
    path.write_bytes(b"\x00\x01")
    path.chmod(0o755)
    m = collect(machine)
    assert m["gpus"] is None
    assert "cannot be started" in m["gpu_problems"][0]


# ---- cgroups


def cgroup(machine: Machine, files: dict[str, str], own: str):
    machine.put("proc/self/cgroup", own)
    for name, text in files.items():
        machine.put(f"sys/fs/cgroup/{name}", text)
    m = collect(machine)
    return m["cgroup_version"], m["memory"]["cgroup_limit_bytes"], m["cpus"]["quota"]


def test_cgroup_v2_takes_the_tightest_of_all_parents(machine):
    files = {
        "kube/memory.max": f"{8 * GIB}\n",
        "kube/pod/memory.max": "max\n",
        "kube/pod/cpu.max": "max 100000\n",
        "kube/cpu.max": "250000 100000\n",
    }
    assert cgroup(machine, files, "0::/kube/pod\n") == (2, 8 * GIB, 2.5)


def test_cgroup_v2_inside_a_namespace(machine):
    files = {"memory.max": f"{GIB}\n", "cpu.max": "50000 100000\n"}
    assert cgroup(machine, files, "0::/../../x\n") == (2, GIB, 0.5)


def test_cgroup_v1_with_the_path_of_the_host(machine):
    files = {
        "memory/memory.limit_in_bytes": f"{4 * GIB}\n",
        "cpu/cpu.cfs_quota_us": "400000\n",
        "cpu/cpu.cfs_period_us": "100000\n",
    }
    own = "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n"
    assert cgroup(machine, files, own) == (1, 4 * GIB, 4.0)


def test_cgroup_v1_without_a_limit(machine):
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "cpu/cpu.cfs_quota_us": "-1\n",
        "cpu/cpu.cfs_period_us": "100000\n",
    }
    assert cgroup(machine, files, "5:memory:/\n") == (1, None, None)


# ---- hostile files


def test_hostile_proc(machine):
    machine.put("proc/meminfo", b"MemTotal: " + b"9" * 5000 + b" kB\n\xff\xfe")
    machine.put("proc/self/limits", b"\x00Max locked memory -5 x\n" * 10)
    machine.put("proc/self/status", "Cpus_allowed_list:\t" + "9-1," * 50 + "\n")
    machine.put("proc/driver/nvidia/version", "Kernel Module  \x1b[31m999999.1 \n" * 10_000)
    machine.put("proc/1/cgroup", b"\xff" * 100_000)
    machine.put("sys/fs/cgroup/memory.max", "-1e9\n")
    machine.put("sys/fs/cgroup/cpu.max", "100000 0\n")
    machine.put("proc/self/cgroup", "0::/" + "a/" * 5000 + "\n" + ":" * 100_000)
    machine.put("proc/driver/nvidia/gpus/x/information", "Model:\t\x1b]0;owned\x07 GPU\n")
    m = collect(machine)
    assert m["memory"] == {
        "total_bytes": None, "available_bytes": None, "cgroup_limit_bytes": None,
    }  # fmt: skip
    assert m["limits"]["memlock"] is None
    assert m["driver"] is None
    assert m["cpus"]["quota"] is None
    assert m["gpus"][0]["name"].isprintable()


def test_a_pipe_in_proc_is_not_waited_for(machine):
    (machine.folder / "proc/meminfo").unlink()
    os.mkfifo(machine.folder / "proc/meminfo")
    assert collect(machine)["memory"]["total_bytes"] is None


def test_a_disk_that_cannot_be_asked(machine):
    def broken(path: str):
        raise OSError(5, "I/O error")

    roots = machine.roots()
    m = facts.collect(facts.Roots(**{**vars(roots), "disk": broken}))
    assert m["shm"] is None
    assert m["disks"] == {"workspace": None, "hf_cache": None}


# ---- environment, container, packages


def test_secrets_are_never_shown(machine):
    machine.env |= {"HF_TOKEN": "hf_verysecret", "HF_HOME": "/data/hf"}
    m = collect(machine)
    assert m["hf_token_set"] is True
    assert "verysecret" not in repr(m)
    assert m["env"]["HF_HOME"] == "/data/hf"
    assert m["disks"]["hf_cache"]["path"] == "/data/hf/hub"


@pytest.mark.parametrize(
    ("name", "text", "evidence"),
    [
        ("root/.dockerenv", "", "/.dockerenv"),
        ("root/run/.containerenv", "", "/run/.containerenv"),
        ("proc/1/cgroup", "0::/kubepods/burstable\n", "kubepods"),
    ],
)
def test_inside_a_container(machine, name, text, evidence):
    assert collect(machine.put(name, text))["container"] == [evidence]


def test_compat_libraries(machine):
    base = "root/usr/local/cuda/compat"
    machine.put(f"{base}/libcuda.so.580.95.05", "").put(f"{base}/libother.so", "")
    m = collect(machine)
    assert (m["cuda_toolkit"], m["cuda_compat"]) == (True, ["libcuda.so.580.95.05"])


def test_installed_packages(tmp_path):
    package(tmp_path, "Transformers", "5.14.1", "numpy>=1.17")
    package(tmp_path, "tensorrt_llm", "1.2.1", files="tensorrt_llm-1.2.1.dist-info/METADATA,,\n")
    package(tmp_path, "left-alone", "1")
    (tmp_path / "broken-1.dist-info").mkdir()
    found = {p.name: p for p in packages.installed([str(tmp_path)])}
    assert sorted(found) == ["tensorrt-llm", "transformers"]
    assert found["transformers"].requires == ("numpy>=1.17",)
    assert found["tensorrt-llm"].has_module is False
    whole = tmp_path / "whole"
    package(whole, "tensorrt-llm", "1.2.1", files="tensorrt_llm/__init__.py,,\n")
    assert packages.installed([str(whole)])[0].has_module is True


def test_tools(machine):
    machine.tool("docker")
    tools = packages.facts((), machine.roots())["tools"]
    assert tools["docker"] == str(machine.folder / "bin/docker")
    assert tools["helm"] is None


def test_version_of():
    assert facts.version_of("580.95.05") == (580, 95, 5)
    for bad in ("", "580.", "x", "580.95.05-1", "1.2.3.4.5", "9" * 50, None):
        assert facts.version_of(bad) is None
