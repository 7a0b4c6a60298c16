"""Whether something prints what a page says: what no page can know is left out on both sides.

Times, ages, process ids, made-up run ids and digests differ from day to day, and columns with them. Beside these a page
may write `…`: within a line for anything, alone in a line for any lines.
"""

import re
from collections.abc import Sequence
from difflib import unified_diff

ANY = "…"

# Each becomes its second half, in this order.
UNKNOWABLE = (
    (re.compile(r"^.*: line \d+: +\d+ (Killed|Terminated)\b.*$"), r"\1"),  # as a shell says it that nobody types at
    (re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\b"), "(date)"),
    (re.compile(r"\+?\b\d+(\.\d+)? ?(ms|s|min|h|d)\b( \d+ (min|s)\b)?"), "(time)"),
    (re.compile(r"\brun_[0-9a-z]{26}\b"), "(run)"),
    (re.compile(r"\bmsg_[0-9a-z]{26}\b"), "(message)"),
    (re.compile(r"\bsha256:[0-9a-f]{64}\b"), "(digest)"),
    (re.compile(r"\bprocess \d+ on [\w.-]+"), "(process)"),
    (re.compile(r"\bworker[- ]\d+\b"), "(worker)"),
    (
        re.compile(r'("(?:at|created_at|started_at|updated_at|finished_at|duration|first_token|pid)": )\d+'),
        r"\1(number)",
    ),
    (re.compile(r"\s+"), " "),
)


def known(line: str) -> str:
    """What of a line is the same every day."""
    for pattern, instead in UNKNOWABLE:
        line = pattern.sub(instead, line)
    return line.strip()


def difference(said: Sequence[str], printed: Sequence[str]) -> str:
    """Empty if what was printed is what was said; else both, side by side."""
    wanted = [known(line) for line in said]
    found = [known(line) for line in printed]
    pattern = "".join([r"(?:.*\n)*?" if line == ANY else _pattern(line) for line in wanted])
    if re.fullmatch(pattern, "".join([f"{line}\n" for line in found])):
        return ""
    return "\n".join(unified_diff(list(said), list(printed), "the page says", "it prints", lineterm=""))


def _pattern(line: str) -> str:
    return ".*".join([re.escape(part) for part in line.split(ANY)]) + r"\n"
