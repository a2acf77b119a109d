"""Bytes and seconds as a person reads them."""

from __future__ import annotations


def size(count: int) -> str:
    """``1.5 GiB``; binary units."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def age(seconds: int | None) -> str:
    """``3 d``; empty where it is not known."""
    if seconds is None:
        return ""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
