"""Changes values of a YAML text in place, so that comments, order and spelling of the rest stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from engineroom.errors import UsageError
from engineroom.spec import yaml_lines


def replace_values(text: str, edits: Mapping[yaml_lines.Path, tuple[str, Any]]) -> str | None:
    """The text with new values, or None where that cannot be done in place.

    It cannot for values that span lines in block style, and for anchors that several keys share: the
    result is read again and must differ in the edited values alone.

    Args:
        edits: path to (YAML text on one line, the value that it stands for).
    """
    try:
        before = yaml_lines.parse(text, "").data
        root = yaml.compose(text, Loader=yaml.BaseLoader)
    except (UsageError, yaml.YAMLError, RecursionError):
        return None
    spans: list[tuple[int, int, str]] = []
    for path, (written, _) in edits.items():
        node = _node(root, path)
        if node is None or (_is_block(node) and node.end_mark.line != node.start_mark.line):
            return None
        spans.append((node.start_mark.index, node.end_mark.index, written))
    result = text
    for start, end, written in sorted(spans, reverse=True):
        result = result[:start] + written + result[end:]
    try:
        after = yaml_lines.parse(result, "").data
    except UsageError:
        return None
    return result if after == with_values(before, {p: v for p, (_, v) in edits.items()}) else None


def with_values(data: Any, edits: Mapping[yaml_lines.Path, Any]) -> Any:
    """A copy of plain data with other values at some paths."""

    def copy(value: Any, path: yaml_lines.Path) -> Any:
        if path in edits:
            return edits[path]
        if isinstance(value, dict):
            return {key: copy(inner, (*path, key)) for key, inner in value.items()}
        if isinstance(value, list):
            return [copy(inner, (*path, i)) for i, inner in enumerate(value)]
        return value

    return copy(data, ())


def plain(value: Any) -> Any:
    """Data as YAML writers take it: floats forget how they were written."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return float(value) if isinstance(value, yaml_lines.SourceFloat) else value


def _node(root: yaml.Node | None, path: yaml_lines.Path) -> yaml.Node | None:
    node = root
    for part in path:
        if isinstance(node, yaml.MappingNode):
            node = next((v for k, v in node.value if getattr(k, "value", None) == part), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part] if part < len(node.value) else None
        else:
            return None
    return node


def _is_block(node: yaml.Node) -> bool:
    if isinstance(node, yaml.ScalarNode):
        return node.style in ("|", ">")
    return not getattr(node, "flow_style", False)
