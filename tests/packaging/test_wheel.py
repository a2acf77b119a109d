"""The wheel carries the data folders and works from a directory that is not the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile

import pytest

from tests.conftest import ROOT, SMOLLM2_CONFIG, spec_data, write_spec

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        check=True, capture_output=True,
    )  # fmt: skip
    return next(folder.glob("*.whl"))


def test_wheel_has_the_data(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for path in (
        "build/skus/l4.yaml", "build/recipes/weights/fp8.yaml", "deploy/stacks/26.07.yaml",
        "deploy/contracts/trtllm/1.2.1.json", "model_repo_templates/llmapi/tensorrt_llm/1/model.py",
        "model_repo_templates/reference/engineroom_reference/runtime.py", "helm/engineroom/Chart.yaml",
        "helm/engineroom/values.schema.json",
    ):  # fmt: skip
        assert f"engineroom/_data/{path}" in names
    assert not any("__pycache__" in name or name.startswith("tests/") for name in names)
    assert any(name.endswith("LICENSE") for name in names)


def test_wheel_works_elsewhere(wheel, tmp_path):
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)],
        check=True, capture_output=True,
    )  # fmt: skip
    spec = write_spec(tmp_path, spec_data(SMOLLM2_CONFIG))
    # The wheel's folder first, so that the editable install of the checkout is not what runs.
    env = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{sysconfig.get_paths()['purelib']}"}

    def run(*argv: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *argv],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )

    where = run("-c", "import engineroom.catalog.resources as r; print(r.data_root())")
    assert where.stdout.strip() == str(site / "engineroom/_data")
    done = run("-m", "engineroom", "plan", "-f", str(spec), "--format", "json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["plans"]) == 2
    done = run("-m", "engineroom", "build", "-f", str(spec), "--dry-run")
    assert done.returncode == 0, done.stderr


def test_pure_verbs_name_nothing_of_one_platform():
    """fcntl and SIGKILL do not exist on Windows: nothing imports or touches them at import."""
    code = (
        "import sys, signal; del signal.SIGKILL; sys.modules['fcntl'] = None; sys.modules['resource'] = None;"
        "import engineroom.pipeline, engineroom.cli.main, engineroom.runner.triton; print('ok')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "ok", done.stderr


def test_serve_answers_exit_4_elsewhere(tmp_path):
    spec = write_spec(tmp_path, spec_data(SMOLLM2_CONFIG))
    code = (
        "import sys; from engineroom.cli.main import run; import engineroom.pipeline;"
        "import engineroom.runner.triton as t; t.sys = type(sys)('sys'); t.sys.platform = 'darwin';"
        f"sys.exit(run(['serve', '-f', {str(spec)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert "Linux only" in done.stderr
