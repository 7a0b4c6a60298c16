"""What the built site needs of the pages: links into the repository, which it lacks, become the paths they name."""

import re
from pathlib import Path
from typing import Any

import mkdocs.exceptions

ROOT = Path(__file__).parents[1]
# A link whose target climbs out of docs/, as `[test](../tests/x.py)` does on a page that is not in a folder.
OUTSIDE = re.compile(r"\[(?P<text>[^]]*)\]\((?P<up>(?:\.\./)+)(?P<path>[^)#\s]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Raises BuildError, which names the page, for a path that the repository does not have."""
    depth = page.file.src_uri.count("/")

    def as_path(link: re.Match[str]) -> str:
        if link["up"].count("../") <= depth:
            return link[0]
        if not (ROOT / link["path"]).exists():
            raise mkdocs.exceptions.BuildError(f"{page.file.src_uri}: the repository has no {link['path']}")
        said = link["text"].strip("`")
        return f"`{said}`" if said in link["path"] else f"{link['text']} (`{link['path']}`)"

    return OUTSIDE.sub(as_path, markdown)
