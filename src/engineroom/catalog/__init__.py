"""Facts as data: SKUs, stacks, contracts, support tables and recipes."""

from engineroom.catalog.contract import Contract
from engineroom.catalog.load import Catalog
from engineroom.catalog.models import KvRecipe, WeightRecipe
from engineroom.catalog.vllm_contract import VllmContract

__all__ = ["Catalog", "Contract", "KvRecipe", "VllmContract", "WeightRecipe"]
