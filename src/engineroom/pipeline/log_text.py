"""The text of a log: lines in blocks, without prefixes, colours and damage."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import BinaryIO

from engineroom.errors import UsageError, Where

LINE_CHARACTERS = 4000
LINE_BYTES = 1 << 16
BLOCK_BYTES = 1 << 20
MAX_BYTES = 1 << 30
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?:? {0,4}",
        r"(?:stdout|stderr) [FP] ",  # container runtime interface
        r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,100} [\w./-]{1,60}(?:\[\d{1,9}\])?: ",
        r"[\w.-]{1,120} {0,20}\| ",  # docker compose
        r"\[pod/[^\]]{1,300}\] |pod/[\w.-]{1,253}(?: {1,4}|: )",
        r"\[\d{1,5},\d{1,5}\]<std(?:out|err)>:|\[rank\d{1,5}\]: ?|\(\w{1,60} pid=\d{1,9}\) ",
        r"(?P<level>[IWEF])\d{4} \d\d:\d\d:\d\d\.\d{1,9} {1,4}\d{1,10} [\w.-]{1,100}:\d{1,6}\] ",
        r"\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] (?:\[[^\]]{1,40}\] ){1,3}?\[(?P<level>[IWEFDV])\] ",
        r"\[TensorRT-LLM\]\[(?P<level>[A-Z])[A-Z]{2,8}\] ",
        r"(?P<level>[IWECD])(?:NFO|ARNING|RROR|RITICAL|EBUG): {0,8}",
        r"[\w.-]{1,253}:\d{1,9}:\d{1,9} \[\d{1,4}\] (?=\S)",  # NCCL's host:pid:thread [device]
    )
)
_ESCAPES = re.compile(rb"\x1b(?:\[[0-9;?]{0,20}[@-~]|\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\))")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_HINTS = (
    b"error", b"exception", b"fatal", b"critical", b"panic", b"traceback", b"exit", b"failed",
    b"terminate", b"fault", b"dumped", b"killed", b"backoff", b"nccl warn", b"unavailable",
    b"warning ", b"[e]", b"[f]",
)  # fmt: skip
_GLOG = re.compile(rb"[EF]\d{4} \d\d:")
_ERROR = re.compile(
    r"\b(?:ERROR|FATAL|CRITICAL|PANIC)\b|^(?:[\w.]{1,200}\.)?[A-Z]\w{0,80}(?:Error|Exception)(?:: |$)|"
    r"^\s{0,20}(?:[Ee]rror|[Ff]atal|[Pp]anic|FAILED): |terminate called after throwing|"
    r"\bCUDA (?:runtime )?error\b|Segmentation fault|\bBus error\b|core dumped|\bNCCL WARN\b|"
    r"[Ee]xit(?:ed with)? [Cc]ode:? {0,20}[1-9]\d{0,2}\b|\bOOMKilled\b|\bCrashLoopBackOff\b|"
    r"\bUNAVAILABLE: |(?:^|\s)Killed$|^\s{0,20}Warning {1,20}(?:Fail\w{0,40}|BackOff|Unhealthy|Evicted)\b"
)
TRACEBACK = "Traceback (most recent call last):"
_MESSAGE_KEYS = ("message", "msg", "log", "text", "event", "error", "err")
_LEVEL_KEYS = ("level", "severity", "levelname", "lvl")
_MAGIC = {
    b"\x1f\x8b": "zcat {0} | engineroom explain-log -",
    b"PK\x03\x04": "unzip -p {0} | engineroom explain-log -",
    b"(\xb5/\xfd": "zstdcat {0} | engineroom explain-log -",
}


def hints(block: bytes) -> Callable[[bytes], bool]:
    """A cheap test for the lines of a block that may be errors; :func:`is_error` decides."""
    lower = block.lower()
    words = [word for word in _HINTS if word in lower]

    def test(line: bytes) -> bool:
        low = line[:LINE_CHARACTERS].lower()
        return any(word in low for word in words) or _GLOG.search(line) is not None

    return test


def is_error(level: str, text: str) -> bool:
    """Whether a line that no row knows looks like an error; its writer's level decides first."""
    if level in ("E", "F", "C"):
        return True
    return not level and _ERROR.search(text) is not None


def plain(raw: bytes) -> tuple[str, str]:
    """The level letter of a line ("" when it names none), and its text without prefixes."""
    text = raw.decode("utf-8", errors="replace").lstrip("\ufeff\ufffd")
    level = ""
    if text.lstrip()[:1] == "{" and text.rstrip()[-1:] == "}":
        level, text = _from_json(text)
    text = _CONTROL.sub("", text[:LINE_CHARACTERS])
    for _ in range(8):
        found = next(filter(None, (prefix.match(text) for prefix in _PREFIXES)), None)
        if found is None or not found.end():
            break
        level = level or found.groupdict().get("level") or ""
        text = text[found.end() :]
    if text[:1] == '"' or '\\"' in text:  # glog of newer servers quotes the message
        text = text.strip().strip('"').replace('\\"', '"').replace("\\n", "\n")
    return level, text.strip("\n")


def _from_json(text: str) -> tuple[str, str]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return "", text
    texts = [data[k] for k in _MESSAGE_KEYS if isinstance(data.get(k), str)]
    levels = [data[k] for k in _LEVEL_KEYS if isinstance(data.get(k), str) and data[k]]
    return (levels[0][0].upper() if levels else ""), (" ".join(texts) if texts else text)


def blocks(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """Whole lines in blocks, without NUL bytes and terminal escapes; long lines are cut."""
    carry, total, dropping = b"", 0, False
    read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
    while chunk := read(BLOCK_BYTES):
        if not total:
            _refuse_binary(chunk[:8192], name)
        total += len(chunk)
        if total > MAX_BYTES:
            raise UsageError(
                f"the log is larger than {MAX_BYTES >> 20} MiB",
                where=Where(name),
                hint=f"give its end: tail -c 100M {name} | engineroom explain-log -",
            )
        if dropping:
            _, newline, chunk = chunk.partition(b"\n")
            if not newline:
                continue
            chunk, dropping = newline + chunk, False
        data, newline, rest = (carry + chunk.replace(b"\0", b"")).rpartition(b"\n")
        if newline:
            yield _cut(_ESCAPES.sub(b"", data) if b"\x1b" in data else data)
        carry = rest[:LINE_BYTES]
        dropping = len(rest) > LINE_BYTES
    if carry:
        yield _ESCAPES.sub(b"", carry)


def _cut(data: bytes) -> bytes:
    if len(data) <= LINE_BYTES:
        return data
    return b"\n".join(line[:LINE_BYTES] for line in data.split(b"\n"))


def _refuse_binary(head: bytes, name: str) -> None:
    for magic, command in _MAGIC.items():
        if head.startswith(magic):
            raise UsageError(
                "a compressed file, not a log", where=Where(name), hint=command.format(name)
            )
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return  # UTF-16, as PowerShell's `>` writes it: ASCII text remains once NUL bytes are gone
    odd = sum(byte < 32 and byte not in b"\t\n\r\x08\x0c\x1b" for byte in head)
    # Text in an old encoding is not UTF-8 either, but has no NUL bytes.
    damaged = head.decode("utf-8", "replace").count("\ufffd") if b"\0" in head else 0
    if max(odd, damaged) * 10 > len(head) * 3:
        raise UsageError("a binary file, not a log", where=Where(name), hint="name a text file")
