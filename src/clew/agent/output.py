"""An agent's output type: its schema, a reply's text taken for a value of it, and values to and from the journal."""

import re
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from clew.agent import schema
from clew.errors import UsageError

if TYPE_CHECKING:
    from clew.agent.schema import Adapter

_FENCED = re.compile(r"\s*```[A-Za-z]*[ \t]*\n(.*?)\n?[ \t]*```\s*", re.DOTALL)


class OutputType:
    """What an agent's final answer must be. Text is taken as it is; anything else is JSON that pydantic validates."""

    def __init__(self, hint: Any, agent: str) -> None:
        self.hint = hint
        self.agent = agent
        self.is_text = hint is str
        if not schema.is_plain(hint):
            self._check()

    def _check(self) -> None:
        try:
            schema.json_schema(self._adapter)
        except UsageError as error:
            raise UsageError(f"agent {self.agent!r}: output_type: {error}: use what pydantic can validate") from error

    @cached_property
    def _adapter(self) -> "Adapter":
        return schema.adapter(self.hint)

    @cached_property
    def schema(self) -> dict[str, Any] | None:
        return None if self.is_text else schema.json_schema(self._adapter)

    def parse(self, text: str) -> Any:
        """The value that a reply's text says. Raises ValueError with a text for the model."""
        if self.is_text:
            return text
        fenced = _FENCED.fullmatch(text)
        said = fenced[1] if fenced else text.strip()
        try:
            return self._adapter.validate_json(said)
        except ValueError as error:
            return self._bare_word(said, error)

    def _bare_word(self, said: str, error: ValueError) -> Any:
        """What is no JSON may be just the word that a Literal or an enum asks for. Raises ValueError if not."""
        if not said.startswith(("{", "[", '"')):
            with suppress(ValueError):
                return self._adapter.validate_python(said)
        raise ValueError(f"The answer is not what was asked for:\n{schema.problems(error)}") from error

    def dump(self, value: Any) -> Any:
        """The value as JSON-able data. Raises UsageError for what cannot be dumped."""
        if self.is_text:
            return value
        try:
            return self._adapter.dump_python(value, mode="json", warnings=False)
        except ValueError as error:
            what = type(value).__name__
            raise UsageError(
                f"agent {self.agent!r}: its output, a {what}, cannot be dumped as JSON: {schema.one_line(error)}"
            ) from error

    def load(self, data: Any) -> Any:
        """The value back from what `dump` made of it. Raises ValueError if the type has changed too much since."""
        if self.is_text:
            return data
        try:
            return self._adapter.validate_python(data)
        except ValueError as error:
            raise ValueError(
                f"a stored output of agent {self.agent!r} is none of its output_type: {schema.problems(error)}"
            ) from error
