"""What an exception may say in a journal: no local paths, no secrets, and not too much."""

import re

from clew.core.values import clean_text
from clew.runtime.user_code import Returned, attempt_sync

LONGEST = 2_000
_PATH = re.compile(r"(?<![\w:/.])(?:/[\w.@+-]+){2,}|\b[A-Za-z]:\\[\w.\\ -]+")
_URL_USER = re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+@")
_NAMED = re.compile(
    r"(?i)\b([\w-]*(?:api[_-]?key|secret|token|password|passwd|authorization))(\"?\s*[=:]\s*\"?)(?:bearer\s+)?[^\s\"',;&]+"
)
_BEARER = re.compile(r"(?i)\bbearer\s+[A-Za-z0-9._~+/-]{8,}=*")
_KEY = re.compile(r"\b(?:sk|pk|rk|ghp|gho|xox[abp]|AKIA)[-_A-Za-z0-9]{12,}")


def without_secrets(text: str) -> str:
    """The text as it may be logged."""
    text = _URL_USER.sub("…@", text)
    text = _BEARER.sub("bearer …", text)
    text = _NAMED.sub(r"\1\2…", text)
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


def described(error: BaseException) -> str:
    """Type and message of an exception, for a journal."""
    message = words(error)
    name = type(error).__name__
    return f"{name}: {message}" if message else name
