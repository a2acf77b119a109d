"""Registry and hub: the real `oras` against a registry double on loopback, and a double of the hub."""

from __future__ import annotations

import base64
import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from engineroom.errors import ExternalToolError, MissingError, UsageError
from engineroom.pipeline.artifacts import entries
from engineroom.pipeline.artifacts_export import chosen, export
from engineroom.pipeline.artifacts_import import import_
from engineroom.runner import hub, oci_registry
from tests.artifacts.common import engine
from tests.artifacts.registry_double import registry

needs_oras = pytest.mark.skipif(
    importlib.util.find_spec("oras") is None, reason="oras is not installed (engineroom[registry])"
)


@pytest.fixture(autouse=True)
def _no_docker_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DOCKER_CONFIG", raising=False)


@needs_oras
@pytest.mark.parametrize("referrers", [True, False])
def test_push_and_pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, referrers: bool) -> None:
    out = tmp_path / "ws"
    path = engine(out)
    monkeypatch.setattr(oci_registry, "CHUNKED", 900)  # so that both ways of sending are used
    with registry(referrers=referrers) as double:
        place = f"oci://{double.host}/team/tiny"
        sent = export(out, chosen(out, ["e" * 8]), f"{place}:v1", big=900)[0]
        assert any(request.startswith("PATCH") for request in double.requests)
        stand_in = sent.digest.replace(":", "-")
        assert (stand_in in double.manifests) is not referrers
        got = import_(tmp_path / "new", f"{place}:v1")[0]
        assert (got.digest, got.sbom, got.outcome) == (sent.digest, True, "imported")
        again = import_(tmp_path / "two", f"{place}@{sent.digest}")[0]
        assert again.digest == sent.digest
        files = {p.name: p.read_bytes() for p in (tmp_path / "new" / got.name).iterdir()}
        assert files == {p.name: p.read_bytes() for p in path.iterdir()}
        # A registry that sends other bytes than those of the digest is found out.
        key = max(double.blobs, key=lambda k: len(double.blobs[k]))
        double.blobs[key] = double.blobs[key][:-1] + b"\1"
        with pytest.raises(UsageError, match="differs from its digest"):
            import_(tmp_path / "three", f"{place}:v1")
        double.manifests[sent.digest] = double.manifests["v1"] + b" "
        with pytest.raises(UsageError, match="the registry sent"):
            import_(tmp_path / "three", f"{place}@{sent.digest}")
        assert entries(tmp_path / "three") == []
        with pytest.raises(ExternalToolError, match="404"):
            import_(tmp_path / "three", f"{place}:v2")
    assert not list(out.glob(".transfer*"))


@needs_oras
def test_credentials_are_dockers_and_are_never_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "ws"
    engine(out)
    with registry(password="ann:s3cr3t-word") as double:
        place = f"oci://{double.host}/team/tiny:v1"
        with pytest.raises(ExternalToolError) as refused:
            export(out, chosen(out, ["e" * 8]), place)
        config = tmp_path / "docker config"
        config.mkdir()
        auth = base64.b64encode(b"ann:s3cr3t-word").decode()
        (config / "config.json").write_text(json.dumps({"auths": {double.host: {"auth": auth}}}))
        monkeypatch.setenv("DOCKER_CONFIG", str(config))
        export(out, chosen(out, ["e" * 8]), place)
        assert import_(tmp_path / "new", place)[0].outcome == "imported"
    said = "".join(capfd.readouterr()) + refused.value.render()
    assert "s3cr3t-word" not in said
    assert auth not in said


@pytest.mark.parametrize(
    "text",
    ["oci://host", "oci://ann:word@host/x", "oci://host/x y", "oci://host/UPPER", "oci://host/a/../b",
     "oci://host/x@sha256:12"],
)  # fmt: skip
def test_what_is_no_reference(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        oci_registry.target(text)
    assert "word" not in refused.value.render()


def test_plain_http_is_for_this_machine_only() -> None:
    assert oci_registry.target("oci://127.0.0.1:5000/a/b:1").url("x").startswith("http://")
    assert oci_registry.target("oci://localhost/a").url("x").startswith("http://")
    assert oci_registry.target("oci://127.0.0.1.example.com/a").url("x").startswith("https://")
    assert oci_registry.target("oci://ghcr.io/a/b").url("x") == "https://ghcr.io/v2/a/b/x"


@pytest.mark.parametrize(
    ("place", "package", "extra"),
    [("oci://127.0.0.1:9/a/b:1", "oras", "registry"), ("hf://acme/tiny", "huggingface_hub", "hub")],
)
def test_without_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, package: str, extra: str
) -> None:
    out = tmp_path / "ws"
    engine(out)
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == package else real(name, *a)
    )
    for act in (lambda: export(out, chosen(out, ["e" * 8]), place), lambda: import_(out, place)):
        with pytest.raises(MissingError) as missing:
            act()
        assert missing.value.hint == f"pip install 'engineroom[{extra}]'"


class HubDouble(ModuleType):
    """Stands for `huggingface_hub`: a folder instead of the hub. Openly a double."""

    def __init__(self, root: Path) -> None:
        super().__init__("huggingface_hub")
        self.root, self.calls = root, []  # type: ignore[var-annotated]
        outer = self

        class HfApi:
            def create_repo(self, name: str, **more: Any) -> None:
                outer.calls.append(("create", name, more))
                (outer.root / name).mkdir(parents=True, exist_ok=True)

            def upload_file(
                self, *, path_or_fileobj: bytes, path_in_repo: str, repo_id: str, **_: Any
            ) -> None:
                goal = outer.root / repo_id / path_in_repo
                goal.parent.mkdir(parents=True, exist_ok=True)
                goal.write_bytes(path_or_fileobj)

            def upload_folder(
                self, *, folder_path: Path, path_in_repo: str, repo_id: str, **_: Any
            ) -> None:
                shutil.copytree(folder_path, outer.root / repo_id / path_in_repo)

        self.HfApi = HfApi

    def snapshot_download(
        self, name: str, *, revision: str | None, local_dir: Path, **_: Any
    ) -> None:
        self.calls.append(("download", name, revision))
        shutil.copytree(self.root / name, local_dir, dirs_exist_ok=True)


def test_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    double = HubDouble(tmp_path / "hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", double)
    monkeypatch.setattr(hub, "_require", lambda: None)
    out = tmp_path / "ws"
    path = engine(out)
    export(out, chosen(out, ["e" * 8]), "hf://acme/tiny")
    assert double.calls[0] == ("create", "acme/tiny", {"private": True, "exist_ok": True})
    got = import_(tmp_path / "new", "hf://acme/tiny@v1")[0]
    assert (got.outcome, got.sbom, double.calls[1]) == (
        "imported",
        True,
        ("download", "acme/tiny", "v1"),
    )
    assert sorted(p.name for p in (tmp_path / "new" / got.name).iterdir()) == sorted(
        p.name for p in path.iterdir()
    )
    assert import_(tmp_path / "new", "hf://acme/tiny")[0].outcome == "already there"
    (double.root / "acme/tiny" / got.name / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="differs from its digest"):
        import_(tmp_path / "two", "hf://acme/tiny")
    with pytest.raises(ExternalToolError, match="FileNotFoundError"):
        import_(tmp_path / "two", "hf://acme/other")
    assert not list((tmp_path / "two").glob(".transfer*"))
    for text in ("hf://acme", "hf://a/b/c", "hf://../x/y"):
        with pytest.raises(UsageError):
            hub.target(text)
