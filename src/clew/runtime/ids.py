"""Ids for new runs: time-ordered and unguessable. The one place that rolls dice."""

import os

from clew.core.steps import RunId

_CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"
_RANDOM_BITS = 74


def new_run_id(now: int) -> RunId:
    """`run_` and a UUIDv7 in Crockford's base32: 48 bits of milliseconds, then version, variant and chance."""
    chance = int.from_bytes(os.urandom(10), "big") & ((1 << _RANDOM_BITS) - 1)
    high, low = chance >> 62, chance & ((1 << 62) - 1)
    value = ((now // 1000) & ((1 << 48) - 1)) << 80 | 0x7 << 76 | high << 64 | 0b10 << 62 | low
    digits: list[str] = []
    for _ in range(26):
        digits.append(_CROCKFORD[value & 31])
        value >>= 5
    return RunId("run_" + "".join(reversed(digits)))
