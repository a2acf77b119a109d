"""No secret of an old setup reaches a file that `migrate` writes, and no ordinary setting is hidden."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import yaml

from engineroom.cli.main import run
from engineroom.migration import secrets
from tests.conftest import ROOT
from tests.migrate import old_layout as old
from tests.migrate.setups import BLS, engine_pbtxt, parameters, write_engine, write_repo

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
SECRET = "Zq9secretXy7"
TEXTS = (
    '--token "%"', "--token '%'", "--token=$(echo %)", "--token `echo %`", '--token "% and more"',
    '-H "Authorization: Bearer %"', "Authorization: Basic %==", "Authorization: Bearer %", "curl -u user:% http://a",
    "curl -u 'user:%' http://a", "curl --user=u:% x", "https://user:%@host/x", "https://%@host/x",
    "docker login -u me -p % nvcr.io", "docker login -p% nvcr.io", "helm registry login --password % h",
    "X-Api-Key: %", '-H "X-Api-Key: % b"', "https://a.net/b?sv=1&sig=%&x=1", "https://a.net/b?token=%",
    "glpat-%", "hf_%", "sk-%", "nvapi-%", "HFTOKEN=%", "export TOKEN_HF='%'; ls", "hf_token:%,api_key:%2",
    "(the build script fills api_key = %)", "${HF_TOKEN:-%}", '"token": "%"', '{\\"token\\": \\"%\\"}',
    'os.environ["HF_TOKEN"] = "%"', "login(token='%')", "machine h login u password %", "ngc config set apikey %", "--set hf.token=%", "wget --password=% u", "--api-key \\\n  % x",
)  # fmt: skip
SHOWN = (
    "--token $HF_TOKEN", "--token ${HF_TOKEN}", "--max_num_tokens 8192", "docker run -u 1000:1000 x",
    "docker run -p 8000:8000 x", "tokens_per_block=32", "--tokenizer_dir /x", "--add_special_tokens True",
    "PWD=/x", "pad_token: </s>", "-u $(id -u):$(id -g)", "/models/hf_llama/risk-sk-model", "a token is short",
    "tokenizer_dir:${TOKENIZER},max_tokens_in_paged_kv_cache:100", "mpirun -n 2 --allow-run-as-root trtllm-build",
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_a_secret_is_hidden_in_any_text(text: str):
    told = secrets.hidden(text.replace("%", SECRET))
    assert SECRET not in told
    assert secrets.HIDDEN in told
    assert "and more" not in told


@pytest.mark.parametrize("text", SHOWN)
def test_ordinary_text_is_as_it_was(text: str):
    assert secrets.hidden(text) == text


@pytest.mark.parametrize(
    "name",
    [
        "HFTOKEN", "TOKEN_HF", "DB_PASS", "MY_PWD", "PASSPHRASE", "HF_TOKEN_VALUE", "hf_token", "hfToken",
        "X-Api-Key", "--token", "--hf-token", "AWS_SECRET_ACCESS_KEY", "NGC_API_KEY", "parameters.api_key",
        "variable HF_TOKEN#2", "TOKEN", "Authorization", "dbpassword",
    ],
)  # fmt: skip
def test_names_of_secrets(name: str):
    assert secrets.is_secret_key(name)


def test_no_known_setting_has_the_name_of_a_secret():
    """Every parameter of the old models, and every flag, field and argument of the contracts."""
    names = {
        "max_num_tokens", "tokens_per_block", "tokenizer_dir", "max_tokens", "token_ids", "pad_token",
        "add_special_tokens", "skip_special_tokens", "eos_token_id", "PWD", "num_key_value_heads",
    }  # fmt: skip
    for folder, end in (("contracts", "json"), ("support", "yaml")):
        for file in sorted((ROOT / "deploy" / folder).rglob(f"*.{end}")):
            text = file.read_text("utf-8")
            names |= _names(json.loads(text) if end == "json" else yaml.load(text, _LOADER))
    assert len(names) > 1000
    wrong = sorted(name for name in names if secrets.is_secret_key(name))
    assert wrong == ["hf_token"]  # vLLM's argument: a token of the hub


def _names(value: object) -> set[str]:
    """Keys and `name` values anywhere in a contract."""
    if isinstance(value, dict):
        own = {k for k in value if " " not in k} | {v for k, v in value.items() if k == "name" and isinstance(v, str)}  # fmt: skip
        return own.union(*(_names(item) for item in value.values()))
    if isinstance(value, list):
        return set().union(*(_names(item) for item in value))
    return set()


@pytest.mark.parametrize(
    "piece",
    ["token=", "'token ", "://", "$(", "a", "${TOKEN:-", "--token ", "Bearer ", " -u", "login -p ",
     'token: "', "hf_", "sk-", "token\n\n", "://a@", "token: (", "-----BEGIN PRIVATE KEY", "?sig="],
)  # fmt: skip
def test_time_is_linear_and_nothing_unread_is_shown(piece: str):
    start = time.process_time()
    told = secrets.hidden(piece * (200_000 // len(piece)) + SECRET)
    assert time.process_time() - start < 0.5
    assert SECRET not in told


SCRIPT = f"""#!/bin/sh
export HFTOKEN={SECRET}a
TOKEN_HF="{SECRET}b"; DB_PASS={SECRET}c
MY_PWD='{SECRET}d'
PASSPHRASE="{SECRET} e"
HF_TOKEN_VALUE={SECRET}f
hf download --token "{SECRET}g" x
hf download --token '{SECRET}h and-more'
curl -H "X-Api-Key: {SECRET}h and-more" x
hf download --token=$(echo {SECRET}i)
curl -H "Authorization: Bearer {SECRET}j" -u user:{SECRET}k https://user:{SECRET}l@host/x?sig={SECRET}m
docker login -p {SECRET}n nvcr.io
curl -H 'X-Api-Key: {SECRET}o' x
echo glpat-{SECRET} hf_{SECRET} sk-{SECRET} nvapi-{SECRET}
python3 convert_checkpoint.py --model_dir https://user:{SECRET}p@host/m --output_dir /c --hf_token {SECRET}q
trtllm-build --checkpoint_dir /c --output_dir /e --api-key="{SECRET}r"
python3 tools/fill_template.py -i repo/tensorrt_llm/config.pbtxt hf_token:{SECRET}s,api_key:{SECRET}t,x:8
"""


def test_no_secret_reaches_a_written_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    """Script variables, flags and commands, placeholders, parameters and JSON keys, in all written files."""
    more = parameters(
        {"hf_token": f"{SECRET}u", "api_key": "${api_key}", "url": f"s3://k:{SECRET}v@b/", "again": f"x {SECRET}u"}
    )  # fmt: skip
    repo = write_repo(
        tmp_path / "old", {"tensorrt_llm": engine_pbtxt(more=more), "tensorrt_llm_bls": BLS}
    )
    engine = write_engine(
        tmp_path / "engine", auth={"password": f"{SECRET}w", "api_key": [f"{SECRET}x"], "pin_token": 4711}
    )  # fmt: skip
    (tmp_path / "build.sh").write_text(SCRIPT)
    out = tmp_path / "new"
    code = run(
        ["migrate", str(repo), "--engine", str(engine), "--build-script", str(tmp_path / "build.sh"),
         "--sku", "l4", "--out", str(out)]
    )  # fmt: skip
    assert code in (0, 1)
    told = capfd.readouterr()
    for name, text in [(p.name, p.read_text("utf-8")) for p in out.iterdir()] + [("terminal", told.out + told.err)]:  # fmt: skip
        found = [
            line
            for line in text.splitlines()
            if any(t in line for t in (SECRET, "4711", "and-more"))
        ]
        assert found == [], name
    rows = json.loads((out / "report.json").read_text("utf-8"))["settings"]
    values = {row["key"]: row["old_value"] for row in rows}
    assert values["parameters.hf_token"] == secrets.HIDDEN
    assert values["trtllm-build[0].--checkpoint_dir"] == "/c"
    assert values["build_config.max_num_tokens"] == 4096


@pytest.mark.parametrize("name", old.NAMES)
def test_nothing_in_an_ordinary_setup_is_taken_for_a_secret(made, name):
    done = made(name)
    assert all(secrets.HIDDEN not in path.read_text("utf-8") for path in done.paths.values())
    assert [s.old_value for s in done.settings] == [leaf.value for leaf in done.setup.leaves]
