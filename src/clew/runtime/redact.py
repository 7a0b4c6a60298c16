"""What an exception may say in a journal: no local paths, no secrets, and not too much."""

import re

from clew.core.values import clean_text
from clew.runtime.user_code import Returned, attempt_sync

LONGEST = 2_000
OURS = frozenset({"fatal", "timeout", "tool_error", "outcome_unknown"})  # classes of `tool_failed` with a meaning
_PATH = re.compile(r"(?<![\w:/.])(?:/[\w.@+-]+){2,}|\b[A-Za-z]:\\[\w.\\ -]+")
_URL_USER = re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+@")
_HEADER = re.compile(r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie)(['\"]?\s*[=:]\s*['\"]?)[^'\"\r\n]+")
_NAMED = re.compile(
    r"(?i)\b([\w-]*(?:api[_-]?key|secret|token|password|passwd|pwd|credential)[\w-]*)"
    r"(['\"]?\s*[=:]\s*['\"]?)(?:[a-z]+\s+(?=\S{16}))?[^\s\"',;&]+"
)
_SCHEME = re.compile(r"(?i)\b(bearer|basic|token)\s+[A-Za-z0-9._~+/-]{8,}=*")
_KEY = re.compile(
    r"\b(?:sk|pk|rk|gh[pousr]|github_pat|glpat|xox[abeprs]|AKIA|ASIA|AIza|hf)[-_A-Za-z0-9]{12,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+"
)


def without_secrets(text: str) -> str:
    """The text as it may be logged."""
    text = _URL_USER.sub("…@", text)
    text = _HEADER.sub(r"\1\2…", text)
    text = _NAMED.sub(r"\1\2…", text)
    text = _SCHEME.sub(r"\1 …", text)
    return _KEY.sub("…", text)


def redacted(text: str) -> str:
    """The text as it may be stored, logged and shown to a model."""
    text = without_secrets(clean_text(text[: 4 * LONGEST]))
    text = _PATH.sub("<path>", text)
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"


def words(error: BaseException) -> str:
    """What an exception says; to say it may be code of its own, and raise."""
    said = attempt_sync(str, error)
    return redacted(said.value) if isinstance(said, Returned) else "(its message cannot be shown)"


def name_of(error: BaseException) -> str:
    """The class of an exception of user code: told apart from the classes that are ours."""
    name = type(error).__name__
    return f"{type(error).__module__}.{name}" if name in OURS else name


def described(error: BaseException) -> str:
    """Type and message of an exception, for a journal."""
    message = words(error)
    name = type(error).__name__
    return f"{name}: {message}" if message else name
