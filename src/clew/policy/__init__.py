"""What is asked of rules and user code about a run, and becomes a verdict or a rewrite in the journal."""

from clew.policy.middleware import Middleware
from clew.policy.rules import Bound, Rule, Verdict, allow, answer, ask, block, deny, gt, judge, lt

__all__ = [
    "Bound",
    "Middleware",
    "Rule",
    "Verdict",
    "allow",
    "answer",
    "ask",
    "block",
    "deny",
    "gt",
    "judge",
    "lt",
]
