"""SQL by name: each file holds queries under a `-- name:` line, with a line on why they are as they are."""

import functools
from collections.abc import Mapping
from pathlib import Path

_MARK = "-- name:"


@functools.cache
def load(name: str) -> Mapping[str, str]:
    """The queries of one file, without their comments."""
    text = Path(__file__).with_name(f"{name}.sql").read_text(encoding="utf-8")
    return {
        title.strip(): _bare(body) for title, _, body in (section.partition("\n") for section in text.split(_MARK)[1:])
    }


def _bare(text: str) -> str:
    return "\n".join(line.partition("--")[0].rstrip() for line in text.splitlines()).strip().removesuffix(";")
