"""Export and import as OCI layouts: whole, the same every time, and nothing but what was exported."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engineroom.errors import UsageError
from engineroom.pipeline import Job
from engineroom.pipeline.artifacts import entries
from engineroom.pipeline.artifacts_export import chosen, export
from engineroom.pipeline.artifacts_import import import_, place
from engineroom.runner import files, manifest, oci, oci_write
from tests.artifacts.common import engine, package
from tests.artifacts.conftest import Run
from tests.artifacts.oci_reader import check_cyclonedx, read_layout

ODD = (
    'it\'s "quoted" $(touch x).txt',
    "line\nbreak.txt",
    "ünï-日本.txt",
    f"{'deep/' * 30}{'n' * 120}.txt",
)


def tree(root: Path) -> dict[str, bytes]:
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def odd_engine(out: Path) -> Path:
    """An artefact with names that a tar header, a shell or a terminal may trip over."""
    path = engine(out)
    content = files.read_json(path / manifest.NAME)
    for i, name in enumerate(ODD):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(bytes([i]) * (1000 * i))
    (path / manifest.NAME).unlink()
    facts = {k: v for k, v in content.items() if k not in (
        "schema_version", "kind", "key", "run_id", "created", "engineroom_version", "catalog_digest",
        "digest", "files", "seal")}  # fmt: skip
    manifest.write(path, "engine", run_id="r", catalog_digest="c", key="e" * 64, facts=facts)
    return path


def test_a_layout_is_what_the_specification_says_and_comes_back_whole(
    made: Job, artifacts: Run, tmp_path: Path
) -> None:
    names = [entry.name for entry in entries(made.out)]
    goal = tmp_path / "lay out"
    code, out, err = artifacts(
        "export", *names, "--to", goal, "--out", made.out, "--format", "json"
    )
    assert code == 0, err
    rows = {row["name"]: row for row in json.loads(out)["artefacts"]}
    found = read_layout(goal)
    assert {item["digest"] for item in found} == {row["digest"] for row in rows.values()}
    for item in found:
        notes = item["manifest"]["annotations"]
        assert item["files"] == tree(made.out / notes["engineroom/path"])
        assert item["config"] == item["files"]["manifest.json"]
        assert item["manifest"]["artifactType"] == "application/vnd.engineroom.artefact.v1"
        assert notes["org.opencontainers.image.created"] == json.loads(item["config"])["created"]
        assert rows[notes["engineroom/path"]]["ref"] == item["ref"]
    code, out, err = artifacts("import", goal, "--out", tmp_path / "new ws", "--format", "json")
    assert code == 0, err
    assert [row["outcome"] for row in json.loads(out)["artefacts"]] == ["imported"] * 3
    for folder in ("artifacts", "checkpoints", "repositories"):
        assert tree(tmp_path / "new ws" / folder) == tree(made.out / folder)
    assert artifacts("verify", "--out", tmp_path / "new ws")[0] == 0
    # Again: everything is there, and nothing is written.
    _, out, _ = artifacts("import", goal, "--out", tmp_path / "new ws", "--format", "json")
    assert {row["outcome"] for row in json.loads(out)["artefacts"]} == {"already there"}


def test_the_sbom_says_what_went_in(made: Job, tmp_path: Path) -> None:
    path = package(made)
    export(made.out, chosen(made.out, ["llmapi-l4-tp1pp1-26-07"], made), str(tmp_path / "lay"))
    (item,) = read_layout(tmp_path / "lay")
    ((kind, raw),) = item["attached"]
    assert kind == "application/vnd.cyclonedx+json"
    document = json.loads(raw)
    check_cyclonedx(document)
    content = files.read_json(path / manifest.NAME)
    parts = {part["bom-ref"]: part for part in document["components"]}
    hashes = {p["name"]: p["hashes"][0]["content"] for p in parts.values() if p["type"] == "file"}
    assert hashes == content["files"]
    model = parts["model:source model:acme/tiny-llama"]
    assert model["purl"] == "pkg:huggingface/acme/tiny-llama@abc123"
    assert model["licenses"][0]["license"]["name"] == "NOTICE"
    assert "Apache-2.0" in model["licenses"][0]["license"]["text"]["content"]
    versions = {p["name"]: p["version"] for p in parts.values() if "version" in p}
    assert versions["nvidia-modelopt"] == "0.47.0"
    assert versions["torch"] == "2.13.0+cpu"
    assert "purl" not in parts["pypi:torch"]  # no such build on PyPI
    assert parts["pypi:transformers"]["purl"] == "pkg:pypi/transformers@5.14.1"
    assert versions["TensorRT-LLM"] == "1.2.1"
    assert versions["nvcr.io/nvidia/tritonserver"] == "26.07-trtllm-python-py3"
    facts = {p["name"]: p["value"] for p in document["metadata"]["component"]["properties"]}
    assert facts["engineroom:digest"] == content["digest"]
    assert facts["engineroom:weights"] == "bf16"


def test_the_same_artefact_is_the_same_bytes(made: Job, tmp_path: Path) -> None:
    picked = chosen(made.out, [package(made).relative_to(made.out).as_posix()])
    export(made.out, picked, str(tmp_path / "a"))
    export(made.out, picked, str(tmp_path / "a.tar"))
    copy = tmp_path / "other place"
    shutil.copytree(made.out, copy, copy_function=shutil.copyfile)  # other times, owners of links
    for path in copy.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700)
    export(copy, chosen(copy, [picked[0].name]), str(tmp_path / "b"))
    export(copy, chosen(copy, [picked[0].name]), str(tmp_path / "b.tar"))
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    with tarfile.open(tmp_path / "a.tar") as tar:
        tar.extractall(tmp_path / "untarred", filter="data")
    assert tree(tmp_path / "untarred").keys() == tree(tmp_path / "a").keys()
    assert [i["digest"] for i in read_layout(tmp_path / "untarred")] == [
        i["digest"] for i in read_layout(tmp_path / "a")
    ]


def test_odd_names_big_files_and_a_second_export(tmp_path: Path) -> None:
    out = tmp_path / "ws"
    path = odd_engine(out)
    goal = tmp_path / "lay"
    export(out, chosen(out, ["e" * 8]), str(goal), big=2000)
    (item,) = read_layout(goal)
    assert item["files"] == tree(path)
    big = [name for name, data in item["files"].items() if len(data) >= 2000]
    assert len(item["manifest"]["layers"]) == 1 + len(big) > 2
    moved = import_(tmp_path / "new", str(goal))
    assert tree(tmp_path / "new" / moved[0].name) == tree(path)
    # Another artefact joins the layout; the first one stays.
    other = engine(tmp_path / "two")
    export(tmp_path / "two", chosen(tmp_path / "two", ["e" * 8]), str(goal))
    assert len(read_layout(goal)) == 1  # the same reference: the newer one took its place
    assert read_layout(goal)[0]["files"] == tree(other)


def test_an_export_that_was_stopped_goes_on(
    made: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picked = chosen(made.out, ["llmapi-l4-tp1pp1-26-07"], made)
    goal = tmp_path / "lay"
    real, seen = oci_write._copy, []

    def stops(file: Any, blob: oci.Descriptor, chunks: Any) -> None:
        seen.append(blob)
        if len(seen) == 3:
            file.write(b"half")
            raise KeyboardInterrupt
        real(file, blob, chunks)

    monkeypatch.setattr(oci_write, "_copy", stops)
    with pytest.raises(KeyboardInterrupt):
        export(made.out, picked, str(goal), big=1000)
    assert not (goal / "index.json").exists()
    before = {p.name: p.stat().st_mtime_ns for p in (goal / "blobs/sha256").iterdir()}
    assert len(before) == 2
    seen.clear()
    monkeypatch.setattr(oci_write, "_copy", lambda *a: (seen.append(a[1]), real(*a))[1])
    export(made.out, picked, str(goal), big=1000)
    assert not {blob.hex for blob in seen} & set(before)  # what was there was not written again
    assert {n: (goal / "blobs/sha256" / n).stat().st_mtime_ns for n in before} == before
    assert read_layout(goal)[0]["files"] == tree(package(made))
    # The same of a tar file: nothing is left, and the next one is whole.
    seen.clear()
    monkeypatch.setattr(oci_write, "_copy", stops)
    with pytest.raises(KeyboardInterrupt):
        export(made.out, picked, str(tmp_path / "x.tar"))
    assert not list(tmp_path.glob("*x.tar*")) + list(tmp_path.glob(".x.tar*"))


def test_nothing_is_exported_over_other_things_nor_damaged(made: Job, tmp_path: Path) -> None:
    picked = chosen(made.out, ["llmapi-l4-tp1pp1-26-07"], made)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    (tmp_path / "mine.tar").write_text("mine")
    for goal in ("mine", "mine.tar", "mine/notes.txt"):
        with pytest.raises(UsageError):
            export(made.out, picked, str(tmp_path / goal))
    assert tree(tmp_path / "mine") == {"notes.txt": b"mine"}
    assert (tmp_path / "mine.tar").read_text() == "mine"
    (package(made) / "llm_args.yaml").write_text("x")
    with pytest.raises(UsageError, match="damaged"):
        export(made.out, picked, str(tmp_path / "lay"))
    with pytest.raises(UsageError, match="no artefact `nothing`"):
        chosen(made.out, ["nothing"])


def test_every_byte_of_a_layout_counts(tmp_path: Path) -> None:
    out, goal = tmp_path / "ws", tmp_path / "lay"
    engine(out)
    export(out, chosen(out, ["e" * 8]), str(goal), big=900)
    for blob in sorted((goal / "blobs/sha256").iterdir()):
        data = blob.read_bytes()
        if data == b"{}":
            continue  # the empty config of the SBOM's manifest: nobody reads it
        for wrong in (data[:-1] + bytes([data[-1] ^ 1]), data[:-1], data + b"\0", None):
            blob.unlink()
            if wrong is not None:
                blob.write_bytes(wrong)
            with pytest.raises(UsageError):
                import_(tmp_path / "new", str(goal))
            blob.write_bytes(data)
    assert [
        p for p in (tmp_path / "new").rglob("*") if p.is_file() and ".engineroom" not in p.parts
    ] == []
    assert import_(tmp_path / "new", str(goal))[0].outcome == "imported"


Change = Callable[[dict[str, Any], list[list[tuple[tarfile.TarInfo, bytes]]]], None]


def regular(name: str, data: bytes = b"x") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    return info, data


def special(name: str, kind: bytes, link: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info, b""


def forged(out: Path, goal: Path, change: Change) -> None:
    """The layout of an engine, with a change to its OCI manifest or tar entries; digests fit again."""
    path = engine(out)
    content = files.read_json(path / manifest.NAME)
    entry = chosen(out, ["e" * 8])[0]
    layers = [[regular(n, (path / n).read_bytes()) for n in (*content["files"], "manifest.json")]]
    value = {
        "annotations": {oci.PATH: entry.name}, "raw": (path / manifest.NAME).read_bytes(),
    }  # fmt: skip
    change(value, layers)
    sink = oci_write.FolderSink(goal)
    config = oci_write.put_bytes(sink, value["raw"], value.get("config", oci.CONFIG))
    rows = []
    for entries_ in layers:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for info, data in entries_:
                tar.addfile(info, io.BytesIO(data))
        rows.append(oci_write.put_bytes(sink, buffer.getvalue(), oci.LAYER))
    made = oci.json_bytes(oci.manifest_of(config, rows, value["annotations"]))
    sink.finish([oci_write.put_bytes(sink, made, oci.MANIFEST, artifact_type=oci.ARTEFACT)])


def entry(*added: tuple[tarfile.TarInfo, bytes]) -> Change:
    return lambda value, layers: layers.append(list(added))


def path_of(name: str) -> Change:
    def change(value: dict[str, Any], layers: Any) -> None:
        value["annotations"][oci.PATH] = name

    return change


def without(name: str) -> Change:
    def change(value: Any, layers: Any) -> None:
        layers[0] = [pair for pair in layers[0] if pair[0].name != name]

    return change


def listing(name: str) -> Change:
    """A file that the artefact's own manifest lists under a hostile name, with a seal that fits."""

    def change(value: dict[str, Any], layers: Any) -> None:
        content = json.loads(value["raw"])
        content["files"][name] = "0" * 64
        content["seal"] = manifest._seal(content)
        value["raw"] = json.dumps(content).encode()
        layers.append([regular(name)])

    return change


def other_manifest(value: dict[str, Any], layers: Any) -> None:
    layers[0] = [p for p in layers[0] if p[0].name != "manifest.json"]
    layers[0].append(regular("manifest.json", value["raw"] + b" "))


def other_config(value: dict[str, Any], layers: Any) -> None:
    value["config"] = "application/vnd.oci.image.config.v1+json"


PLACE = "artifacts/tiny/engine/1.2.1/h100-sxm/1x1"


@pytest.mark.parametrize(
    "change",
    [
        entry(special("link", tarfile.SYMTYPE, "/etc/passwd")),
        entry(special("rank0.engine", tarfile.SYMTYPE, "../../../x")),
        entry(special("hard", tarfile.LNKTYPE, "config.json")),
        entry(special("config.json", tarfile.LNKTYPE, "../../../../etc/passwd")),
        entry(special("device", tarfile.CHRTYPE)),
        entry(special("pipe", tarfile.FIFOTYPE)),
        entry(special("folder", tarfile.DIRTYPE)),
        entry(special("sparse", tarfile.GNUTYPE_SPARSE)),
        entry(regular("/tmp/absolute")),
        entry(regular("../climbs")),
        entry(regular("a/../../climbs")),
        entry(regular("./config.json")),
        entry(regular("extra.txt")),
        entry(regular("config.json")),
        entry(regular("manifest.json")),
        listing("../climbs"),
        listing("/tmp/absolute"),
        listing("a//b"),
        listing("C:/x"),
        listing("back\\slash"),
        without("rank0.engine"),
        without("manifest.json"),
        other_manifest,
        other_config,
        path_of(""),
        path_of("../outside/e"),
        path_of("/tmp/outside"),
        path_of(f"{PLACE}/../{'e' * 16}"),
        path_of(f"{PLACE}/{'f' * 16}"),
        path_of(f"{PLACE}/.{'e' * 15}"),
        path_of(f"checkpoints/{'e' * 16}"),
        path_of(f"artifacts/{'e' * 16}"),
        path_of(".engineroom/locks"),
    ],
)
def test_a_hostile_layout_is_refused_and_nothing_is_written(tmp_path: Path, change: Change) -> None:
    forged(tmp_path / "ws", tmp_path / "lay", change)
    before = tree(tmp_path)
    new = tmp_path / "inside/new"
    with pytest.raises(UsageError) as refused:
        import_(new, str(tmp_path / "lay"))
    assert refused.value.where is not None
    after = tree(tmp_path)
    written = {name for name in after if name not in before}
    assert {name for name in written if "/.engineroom/locks/" not in name} == set()
    assert not list(new.rglob("*.partial-*"))


def test_the_forger_of_these_tests_can_also_be_honest(tmp_path: Path) -> None:
    forged(tmp_path / "ws", tmp_path / "lay", lambda value, layers: None)
    assert import_(tmp_path / "new", str(tmp_path / "lay"))[0].outcome == "imported"


def test_a_link_in_the_workspace_does_not_lead_an_import_out(tmp_path: Path) -> None:
    forged(tmp_path / "ws", tmp_path / "lay", lambda value, layers: None)
    (tmp_path / "new").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "new/artifacts").symlink_to(tmp_path / "outside")
    with pytest.raises(UsageError, match="leads out"):
        import_(tmp_path / "new", str(tmp_path / "lay"))
    assert tree(tmp_path / "outside") == {}


def test_a_damaged_one_is_replaced_and_only_what_is_asked_for_comes(
    made: Job, artifacts: Run, tmp_path: Path
) -> None:
    picked = entries(made.out)
    moved = export(made.out, picked, str(tmp_path / "a.tar"))
    one = next(m for m in moved if m.kind == "llmapi-package")
    new = tmp_path / "new"
    assert [m.name for m in import_(new, str(tmp_path / "a.tar"), digest=one.digest)] == [one.name]
    (new / one.name / "llm_args.yaml").write_text("damage")
    assert import_(new, str(tmp_path / "a.tar"), only=[one.ref])[0].outcome == "imported"
    assert tree(new / one.name) == tree(made.out / one.name)
    code, _, err = artifacts(
        "import", tmp_path / "a.tar", "--out", new, "--digest", f"sha256:{'0' * 64}"
    )
    assert (code, "no artefact" in err) == (2, True)
    for wrong in ("nowhere", "engineroom.yaml"):
        code, _, err = artifacts("import", tmp_path / wrong, "--out", new)
        assert code == 2
        assert "Traceback" not in err


OF_A_BUILD = {
    "lane": "engine", "stack": {"runtime_version": "1.2.1"}, "sku": {"id": "l4"},
    "tensor_parallel": 2, "pipeline_parallel": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name"),
    [("checkpoint", "checkpoints/fp8-kv_fp8-" + "0" * 12), ("repository", "repositories/any-name"),
     ("engine", "artifacts/x/engine/1.2.1/l4/2x1/" + "0" * 16)],
)  # fmt: skip
def test_places(tmp_path: Path, kind: str, name: str) -> None:
    content = {"kind": kind, "key": "0" * 64, **OF_A_BUILD}
    assert place(tmp_path, name, content, "w") == tmp_path / name
    for wrong in (
        {"kind": "something"},
        {"key": f"{'0' * 16}/../../{'0' * 42}"},
        {"key": "0" * 16},
        {"schema_version": 3},
        {},
    ):
        with pytest.raises(UsageError):
            place(tmp_path, name, {**content, **wrong} if wrong else {}, "w")


@pytest.mark.parametrize(
    "wrong",
    [{"lane": "llmapi"}, {"stack": {"runtime_version": "1.2.0"}}, {"stack": None}, {"sku": {"id": "l40s"}},
     {"tensor_parallel": 1, "pipeline_parallel": 2}, {"kind": "vllm-package"}],
    ids=lambda w: next(iter(w)),
)  # fmt: skip
def test_an_artefact_is_placed_where_its_facts_belong(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    content = {"kind": "engine", "key": "0" * 64, **OF_A_BUILD}
    name = f"artifacts/any-service/engine/1.2.1/l4/2x1/{'0' * 16}"
    assert place(tmp_path, name, content, "w") == tmp_path / name
    with pytest.raises(UsageError, match="no place of a"):
        place(tmp_path, name, {**content, **wrong}, "w")


def sparse(**headers: str) -> tuple[tarfile.TarInfo, bytes]:
    info, data = regular("config.json")
    info.pax_headers = {k.replace("_", "."): v for k, v in headers.items()}
    return info, data


@pytest.mark.parametrize(
    "headers",
    [
        {"GNU_sparse_map": "a,b", "GNU_sparse_size": "9"},
        {"GNU_sparse_major": "1", "GNU_sparse_minor": "0", "GNU_sparse_realsize": "9"},
        {"size": "9" * 30},
    ],
)
def test_a_layer_with_bad_extended_headers_is_refused(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    forged(tmp_path / "ws", tmp_path / "lay", entry(sparse(**headers)))
    with pytest.raises(UsageError):
        import_(tmp_path / "new", str(tmp_path / "lay"))
    # The same in the place of a whole layout.
    info, data = sparse(**headers)
    with tarfile.open(tmp_path / "lay.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info, io.BytesIO(data))
    with pytest.raises(UsageError):
        import_(tmp_path / "new", str(tmp_path / "lay.tar"))


def test_an_sbom_whose_layers_are_no_list(tmp_path: Path) -> None:
    out, goal = tmp_path / "ws", tmp_path / "lay"
    engine(out)
    export(out, chosen(out, ["e" * 8]), str(goal))
    index = files.read_json(goal / "index.json")
    row = next(r for r in index["manifests"] if r.get("artifactType") == oci.SBOM)
    value = files.read_json(goal / "blobs/sha256" / row["digest"][7:])
    blob = oci.described(oci.json_bytes({**value, "layers": 5}), oci.MANIFEST)
    (goal / "blobs/sha256" / blob.hex).write_bytes(oci.json_bytes({**value, "layers": 5}))
    row.update(digest=blob.digest, size=blob.size)
    files.write_json(goal / "index.json", index)
    with pytest.raises(UsageError, match="`layers` is no list: 5"):
        import_(tmp_path / "new", str(goal))


@pytest.mark.parametrize("text", ['{"manifests": 5}', "null", "[]", '{"manifests": null}', "{"])
def test_nothing_is_added_to_an_index_that_is_none(tmp_path: Path, text: str) -> None:
    goal = tmp_path / "lay"
    oci_write.FolderSink(goal)
    (goal / "index.json").write_text(text)
    with pytest.raises(UsageError, match="no OCI index"):
        oci_write.FolderSink(goal)
    assert (goal / "index.json").read_text() == text


def test_a_link_that_leads_nowhere_is_not_exported_to(tmp_path: Path) -> None:
    out = tmp_path / "ws"
    engine(out)
    picked = chosen(out, ["e" * 8])
    for name in ("lay", "x.tar"):
        (tmp_path / name).symlink_to("not there")
        with pytest.raises(UsageError) as refused:
            export(out, picked, str(tmp_path / name))
        assert refused.value.where is not None
        assert refused.value.where.file == (tmp_path / name).as_posix()
        assert (tmp_path / name).readlink() == Path("not there")
    assert not (tmp_path / "not there").exists()


def test_two_exports_into_one_folder_lose_nothing(tmp_path: Path) -> None:
    """Both have looked at the folder before either ends; and two at once write one blob in turns."""
    goal = tmp_path / "lay"
    sinks = [oci_write.FolderSink(goal) for _ in range(2)]
    rows = []
    for number, sink in enumerate(sinks):
        raw = oci.json_bytes({"number": number})
        rows.append(
            oci_write.put_bytes(sink, raw, oci.MANIFEST, annotations={oci.REF_NAME: str(number)})
        )
    for sink, row in zip(sinks, rows):
        sink.finish([row])
    assert [r["digest"] for r in files.read_json(goal / "index.json")["manifests"]] == [
        row.digest for row in rows
    ]

    data, inside, most = b"x" * 1000, [], []

    def chunks() -> list[bytes]:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.1)
        inside.pop()
        return [data]

    blob = oci.described(data, oci.LAYER)
    threads = [threading.Thread(target=sink.put, args=(blob, chunks)) for sink in sinks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert most == [1]  # the second found it there
    assert sum(sink.written for sink in sinks) == 3
    assert {p.name for p in goal.iterdir()} == {"blobs", "index.json", "oci-layout"}
