"""Values that pass between user code and the runtime: results with more to them, findings of `verify`, client tools."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from clew.agent.shapes import tool_name
from clew.core.spec import ToolSpec
from clew.core.values import digest, pack
from clew.errors import UsageError

if TYPE_CHECKING:
    from clew.agent.keys import StateKey


class _Content(Struct, frozen=True, eq=False):
    content: Any


class ToolOutput(_Content, frozen=True, eq=False, kw_only=True):
    """A result with more to it: changes of state, files for people, facts about it, the wish to end the run."""

    state: "Mapping[StateKey[Any], Any] | None" = None
    artifacts: Sequence[Any] = ()
    metadata: Mapping[str, Any] = {}
    end: bool = False


class Done(Struct, frozen=True):
    """`verify` found that the call happened; `value` is what it would have returned."""

    value: Any = None


class NotDone(Struct, frozen=True):
    """`verify` found that the call did not happen: it may be tried again."""


class Unknown(Struct, frozen=True):
    """`verify` could not find out."""


class Tell(Struct, frozen=True):
    """What an agent's recovery has the model told of a failure, in place of the tool's own words."""

    text: str


class ClientTool(Struct, frozen=True):
    """A tool without a body: the caller runs it and answers its ticket. `schema` is that of its arguments."""

    name: str
    schema: Mapping[str, Any]
    description: str = ""

    def __post_init__(self) -> None:
        tool_name(self.name)
        if self.schema.get("type", "object") != "object":
            raise UsageError(f"client tool {self.name!r}: schema= must be the JSON schema of an object")
        try:
            digest(pack(self.schema))
        except UsageError as error:
            raise UsageError(f"client tool {self.name!r}: schema= is not JSON: {error}") from error

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(name=self.name, description=self.description, schema=dict(self.schema), client=True)
