"""What `plan` answers from when it weighs the lanes: listed architectures, published figures, request features.

`deploy/support/models_by_lane.yaml`, `lane_figures.yaml` and `serving_features.yaml`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field

from engineroom.catalog.load import Catalog, in_range
from engineroom.catalog.models import Finite, Ranges, Row, Sources, VersionText
from engineroom.catalog.support_models import Lane, Sourced
from engineroom.names import LaneName, Support
from engineroom.types import ModelShape
from engineroom.types.advice import PublishedFigure

_IO = r"^[1-9]\d{0,6}/[1-9]\d{0,6}$"


class ModelsRow(Sourced):
    """Architectures with one verdict, for one lane and version range."""

    lane: Lane
    versions: Ranges
    support: Support
    architectures: tuple[str, ...]


class EncoderDecoder(Sourced):
    architectures: tuple[str, ...]


class ModelsFile(Row):
    schema_version: Literal[1]
    rows: tuple[ModelsRow, ...]
    encoder_decoder: EncoderDecoder


class FigureRow(Row):
    """Figures of one model on one SKU.

    Attributes:
        shape: hidden size, layers, attention heads, KV heads; what a spec's model is matched by.
        io: input/output tokens of a request to the figure.
    """

    model: str
    shape: tuple[int, int, int, int]
    weights: str
    sku: str
    tp: int
    io: dict[Annotated[str, Field(pattern=_IO)], Finite]


class FiguresPage(Sourced):
    """One page of figures and the conditions that hold for all of it."""

    lane: Lane
    version: VersionText
    metric: str
    load: str
    rows: tuple[FigureRow, ...]


class FiguresFile(Row):
    schema_version: Literal[1]
    pages: tuple[FiguresPage, ...]


class _Carried(Row):
    """How a front of ours carries a feature (`as`), and the test that proves it."""

    kind: Annotated[Literal["computed", "boundary", "refused", "absent"], Field(alias="as")]
    test: str | None = None
    note: str | None = None


class _FeatureRow(Row):
    id: str
    bls: _Carried
    ensemble: _Carried
    llmapi: _Carried
    vllm: _Carried


class _FeaturesFile(Row):
    schema_version: Literal[1]
    fronts: dict[str, str]
    features: tuple[_FeatureRow, ...]


class LaneFacts:
    """Look-ups over the three files."""

    def __init__(self, catalog: Catalog) -> None:
        self._models = catalog._single("deploy/support/models_by_lane.yaml", ModelsFile)
        self._figures = catalog._single("deploy/support/lane_figures.yaml", FiguresFile)
        rows = catalog._single("deploy/support/serving_features.yaml", _FeaturesFile).features
        self._features = {row.id: row for row in rows}

    def model(self, lane: LaneName, version: str, architecture: str) -> tuple[Support, str]:
        """Whether the lane's runtime lists an architecture, and who says so; unlisted is unknown."""
        for row in self._models.rows:
            if (
                row.lane == lane
                and architecture in row.architectures
                and in_range(version, row.versions)
            ):
                return row.support, _joined(row.source)
        return Support.UNKNOWN, "no list that was read names it for this version"

    def encoder_decoder(self, architecture: str) -> str | None:
        """The source that calls the architecture an encoder with a decoder, or None."""
        row = self._models.encoder_decoder
        return _joined(row.source) if architecture in row.architectures else None

    def carries(self, feature: str, lane: LaneName) -> bool:
        """Whether a front of ours has an input or output for a feature.

        `refused` counts as carried: it says what a stand-in does, and the runtime has the feature.

        Raises:
            KeyError: no such feature; the names are those of the file.
        """
        row = self._features[feature]
        fronts = {
            LaneName.ENGINE: (row.bls, row.ensemble),
            LaneName.LLMAPI: (row.llmapi,),
            LaneName.VLLM: (row.vllm,),
        }[lane]
        return any(front.kind != "absent" for front in fronts)

    def figures(
        self, shape: ModelShape, sku: str, weights: str, tensor_parallel: int
    ) -> tuple[PublishedFigure, ...]:
        """Figures of models of the same sizes in the same format on the same SKU and TP size."""
        wanted = (
            shape.hidden_size, shape.num_hidden_layers, shape.num_attention_heads,
            shape.num_key_value_heads,
        )  # fmt: skip
        return tuple(
            PublishedFigure(
                lane=LaneName(page.lane),
                version=page.version,
                model=row.model,
                weights=row.weights,
                sku=row.sku,
                tensor_parallel=row.tp,
                input_tokens=int(io.split("/")[0]),
                output_tokens=int(io.split("/")[1]),
                metric=page.metric,
                load=page.load,
                value=value,
                source=_joined(page.source),
                note=page.note,
            )
            for page in self._figures.pages
            for row in page.rows
            if (row.shape, row.sku, row.weights, row.tp) == (wanted, sku, weights, tensor_parallel)
            for io, value in row.io.items()
        )


def _joined(source: Sources) -> str:
    return "; ".join(source)


@lru_cache(maxsize=8)
def load_lane_facts(catalog: Catalog) -> LaneFacts:
    """Raises CatalogError when a file, or an overlay's, is not of its schema."""
    return LaneFacts(catalog)
