"""Findings as SARIF 2.1.0 (OASIS), the format that code hosts show beside the lines of a change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engineroom import __version__
from engineroom.checks.codes import register
from engineroom.errors import Where
from engineroom.names import Severity
from engineroom.types import Finding

_LEVEL = {Severity.ERROR: "error", Severity.WARN: "warning", Severity.INFO: "note"}
SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)


def sarif(findings: Sequence[Finding], where: Callable[[Finding], Where]) -> dict[str, Any]:
    """One run with a rule for each code that was found.

    Args:
        where: the file, line and key of a finding.
    """
    codes = register()
    used = sorted({f.code for f in findings})
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "engineroom",
                        "version": __version__,
                        "rules": [_rule(code, codes) for code in used],
                    }
                },
                "results": [_result(f, where(f), used.index(f.code)) for f in findings],
            }
        ],
    }


def _rule(id: str, codes: dict[str, Any]) -> dict[str, Any]:
    code = codes.get(id)
    if code is None:
        return {"id": id}
    return {
        "id": id,
        "shortDescription": {"text": code.says},
        "fullDescription": {"text": f"{code.says}: {code.why}"},
        "help": {"text": f"Source: {code.source}"},
        "defaultConfiguration": {"level": _LEVEL[code.severity]},
        "properties": {"tags": [str(code.topic)]},
    }


def _result(finding: Finding, place: Where, index: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": _LEVEL[finding.severity],
        "message": {"text": f"{finding.reason}\nFix: {finding.fix}\nSource: {finding.source}"},
        "properties": {"key": finding.key, "target": finding.target},
    }
    location: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": finding.key}]}
    if place.file:
        location["physicalLocation"] = {
            "artifactLocation": {"uri": _uri(place.file)},
            **({"region": {"startLine": place.line}} if place.line else {}),
        }
    result["locations"] = [location]
    return result


def _uri(path: str) -> str:
    """A relative URI reference; reserved characters are percent-encoded (RFC 3986)."""
    safe = "/-_.~ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
    return "".join(
        c if c in safe else "".join(f"%{b:02X}" for b in c.encode("utf-8", "replace")) for c in path
    )
