"""Typed views of what somebody else wrote: model configs, engine configs, requests, host facts."""

from engineroom.reading.vocabulary import Evidence

__all__ = ["Evidence"]
