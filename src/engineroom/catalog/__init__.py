"""Facts as data: SKUs, stacks, contracts, support tables and recipes."""

from engineroom.catalog.contract import Contract
from engineroom.catalog.load import Catalog
from engineroom.catalog.models import KvRecipe, WeightRecipe

__all__ = ["Catalog", "Contract", "KvRecipe", "WeightRecipe"]
