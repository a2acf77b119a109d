"""Pure rules: from facts to findings. One file per topic, one list of topics."""

from engineroom.checks.base import TargetContext, order
from engineroom.checks.run import all_rules, check_target

__all__ = ["TargetContext", "all_rules", "check_target", "order"]
