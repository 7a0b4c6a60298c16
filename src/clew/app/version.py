"""Which Clew this is, by the tag it was built from or the commits since; stands in the journal with each activation."""

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    try:
        return metadata.version("clew")
    except metadata.PackageNotFoundError:
        return "unknown"
