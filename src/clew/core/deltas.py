"""What watchers get beside entries: fragments that are never journaled, and are void once their entry is there."""

from typing import ClassVar, Literal, TypeAlias

from msgspec import Struct

from clew.core.values import Value


class _Fragment(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """Where it belongs: a newer (epoch, attempt) of a step voids what an older one said."""

    step: str
    epoch: int = 0
    attempt: int = 1
    part: int = 0
    offset: int = 0


class TextDelta(_Fragment, frozen=True, tag="text"):
    kind: ClassVar[Literal["text"]] = "text"
    text: str


class ThinkingDelta(_Fragment, frozen=True, tag="thinking"):
    kind: ClassVar[Literal["thinking"]] = "thinking"
    text: str


class ToolArgsDelta(_Fragment, frozen=True, tag="tool_args"):
    kind: ClassVar[Literal["tool_args"]] = "tool_args"
    text: str


class ProgressDelta(_Fragment, frozen=True, tag="progress"):
    kind: ClassVar[Literal["progress"]] = "progress"
    value: Value = None


class ResetDelta(_Fragment, frozen=True, tag="reset"):
    """Everything said so far under this step is void: it is being said anew."""

    kind: ClassVar[Literal["reset"]] = "reset"


Delta: TypeAlias = TextDelta | ThinkingDelta | ToolArgsDelta | ProgressDelta | ResetDelta
