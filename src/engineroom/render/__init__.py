"""Jinja to files in memory; nothing is written here."""

from engineroom.render.tree import TreeLayout, render_tree

__all__ = ["TreeLayout", "render_tree"]
