"""`engineroom matrix fields`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from engineroom.cli.options import CatalogDir, Format, OutputFormat

if TYPE_CHECKING:
    from engineroom.planning.field_table import FieldTable, NameUse

HEADS = {
    "engine": "tensorrt_llm_bls, ensemble",
    "core": "engine lane's tensorrt_llm",
    "llmapi": "llmapi's tensorrt_llm",
    "vllm": "vllm_model",
}


def fields_command(fmt: Format = OutputFormat.TABLE, catalog: CatalogDir = None) -> None:
    """What one request field is called by the models of each lane."""
    from engineroom.catalog import Catalog
    from engineroom.cli.console import json_text
    from engineroom.planning.field_table import field_table

    facts = Catalog(catalog)
    table = field_table(facts)
    if fmt is OutputFormat.JSON:
        typer.echo(
            json_text({"schema_version": 1, "catalog_digest": facts.digest, **table.as_dict()})
        )
    else:
        typer.echo("\n".join(markdown(table)))


def markdown(table: FieldTable) -> list[str]:
    """The table as docs/serving.md shows it."""
    lines = []
    for side in ("inputs", "outputs"):
        option = side == "inputs"
        heads = [side[:-1], *(["generate"] if option else []), *HEADS.values()]
        lines += ["| " + " | ".join(heads) + " |", "| " + " | ".join("---" for _ in heads) + " |"]
        for line in table.lines:
            if line.side == side:
                cells = [line.id, *([f"`{line.option}`" if line.option else ""] if option else [])]
                cells += [_cell(line.names[dialect]) for dialect in line.names]
                lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    lines += ["Names without a counterpart:", ""]
    for (side, dialect), uses in table.alone.items():
        lines.append(f"* {HEADS[dialect]}, {side}: " + ", ".join(_cell((use,)) for use in uses))
    return lines


def _cell(uses: tuple[NameUse, ...]) -> str:
    return ", ".join(
        f"`{use.name}`" + (f" ({use.versions})" if use.versions else "") for use in uses
    )
