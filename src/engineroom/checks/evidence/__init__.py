"""Rules over evidence: one list of topic modules."""

from engineroom.checks.evidence.context import Answer, Context, TopicRule
from engineroom.checks.evidence.run import evidence_rules, judge

__all__ = ["Answer", "Context", "TopicRule", "evidence_rules", "judge"]
