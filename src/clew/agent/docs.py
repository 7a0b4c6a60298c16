"""A tool's docstring: what the model is told of the tool and of each parameter. Griffe comes in for sections only."""

import inspect
import re
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from msgspec import Struct

Style: TypeAlias = Literal["google", "numpy", "sphinx"]

# Only sections that speak of parameters or of what the model does not see; the rest of a docstring is for it to read.
_FIELDS = "param|parameter|arg|argument|key|keyword|returns?|raises?"
_STYLES: tuple[tuple[Style, re.Pattern[str]], ...] = (
    ("sphinx", re.compile(rf"^\s*:(?:{_FIELDS})\b[^:\n]*:", re.MULTILINE)),
    ("numpy", re.compile(r"^\s*(?:Parameters|Other Parameters|Returns|Raises)\s*\n\s*-{3,}\s*$", re.MULTILINE)),
    ("google", re.compile(r"^\s*(?:Args|Arguments|Parameters|Params|Returns|Raises):\s*$", re.MULTILINE)),
)


class ToolDocs(Struct, frozen=True):
    description: str = ""
    parameters: dict[str, str] = {}


def style_of(text: str) -> Style | None:
    """The convention a docstring's sections follow; None if it has none that matter."""
    return next((style for style, pattern in _STYLES if pattern.search(text)), None)


def read_docs(fn: Callable[..., Any]) -> ToolDocs:
    """The docstring of a function, its sections apart."""
    text = inspect.cleandoc(fn.__doc__ or "")
    style = style_of(text)
    return ToolDocs(text) if style is None else _sections(text, style)


def _sections(text: str, style: Style) -> ToolDocs:
    from griffe import Docstring, DocstringSectionKind

    texts: list[str] = []
    parameters: dict[str, str] = {}
    for section in Docstring(text).parse(style, warnings=False):
        match section.kind:
            case DocstringSectionKind.parameters | DocstringSectionKind.other_parameters:
                parameters |= {one.name.lstrip("*"): " ".join(one.description.split()) for one in section.value}
            case DocstringSectionKind.text:
                texts.append(section.value)
            case DocstringSectionKind.admonition:
                texts.append(f"{section.title}: {section.value.description}")
            case DocstringSectionKind.examples:
                texts.append("\n".join(["Examples:", *(example for _, example in section.value)]))
            case _:
                pass  # what it returns and raises is for whoever reads the code
    return ToolDocs("\n\n".join(one.strip() for one in texts if one.strip()), parameters)
