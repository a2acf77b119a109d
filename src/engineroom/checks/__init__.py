"""Pure rules: from facts to findings. One file per topic, one list of rules."""

from engineroom.checks.base import TargetContext, check_target, order

__all__ = ["TargetContext", "check_target", "order"]
