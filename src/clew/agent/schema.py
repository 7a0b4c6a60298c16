"""From a function's signature to the schema of its arguments. Pydantic is imported only when one is needed."""

import inspect
import json
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from types import FrameType, NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    TypeAlias,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import typing_extensions
from msgspec import Struct

from clew.agent.context import RunContext
from clew.errors import UsageError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    Adapter: TypeAlias = TypeAdapter[Any]

Validate: TypeAlias = Callable[[Any], Any]

_REQUIRED: Any = inspect.Parameter.empty
_ATOMS = (str, int, float, bool, NoneType, list, dict, tuple, set, frozenset, Decimal, date, datetime, time, timedelta)
_PLAIN_ORIGINS = (list, dict, tuple, set, frozenset, Union, UnionType)
_MOST_PROBLEMS = 10
_typed_dict = cast("Callable[[str, dict[str, Any]], Any]", typing_extensions.TypedDict)


class Parameter(Struct, frozen=True):
    name: str
    hint: Any
    default: Any = _REQUIRED

    @property
    def required(self) -> bool:
        return self.default is _REQUIRED


class Signature(Struct, frozen=True):
    """What a function takes from the model, whether it takes a context before that, and what it says it returns."""

    parameters: tuple[Parameter, ...]
    takes_context: bool
    returns: Any


def read_signature(fn: Callable[..., Any], tool: str, frame: FrameType | None) -> Signature:
    """The signature of a tool's function. Raises UsageError for what has no place in a schema."""
    hints = _hints(fn, tool, frame)
    try:
        given = list(inspect.signature(fn).parameters.values())
    except ValueError as error:
        raise UsageError(f"tool {tool!r}: {fn!r} has no signature that could be read: wrap it in a function") from error
    context = bool(given) and is_context(hints.get(given[0].name))
    parameters = [_parameter(one, hints, tool) for one in (given[1:] if context else given)]
    return Signature(tuple(parameters), context, hints.get("return", Any))


def _hints(fn: Callable[..., Any], tool: str, frame: FrameType | None) -> dict[str, Any]:
    try:
        return get_type_hints(fn, include_extras=True)
    except (NameError, AttributeError) as error:
        # Only now: names of a surrounding function are seen by its frame alone.
        local = dict(frame.f_locals) if frame is not None else {}
        try:
            return get_type_hints(fn, localns=local, include_extras=True)
        except (NameError, AttributeError):
            raise UsageError(
                f"tool {tool!r}: a type hint does not resolve ({error}): import the type at run time, "
                "not only under TYPE_CHECKING, and define it before the tool"
            ) from error


def _parameter(one: inspect.Parameter, hints: Mapping[str, Any], tool: str) -> Parameter:
    if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
        raise UsageError(f"tool {tool!r}: {one} has no schema: name each parameter, with a type hint")
    if one.kind is one.POSITIONAL_ONLY:
        raise UsageError(f"tool {tool!r}: parameter {one.name!r} is positional-only, but arguments come by name")
    if one.name not in hints:
        raise UsageError(
            f"tool {tool!r}: parameter {one.name!r} has no type hint: say {one.name}: str, or whatever it is"
        )
    if is_context(hints[one.name]):
        raise UsageError(f"tool {tool!r}: the context {one.name!r} must be the first parameter")
    return Parameter(one.name, hints[one.name], one.default)


def is_context(hint: Any) -> bool:
    """Whether a first parameter with this hint is the context."""
    origin = get_origin(hint) or hint
    return isinstance(origin, type) and issubclass(origin, RunContext)


def is_plain(hint: Any) -> bool:
    """Whether pydantic surely takes the hint, and its values are dumped as they look: known without importing it."""
    if hint is Any or hint in _ATOMS:
        return True
    match get_origin(hint):
        case None:
            return False
        case origin if origin is Literal:
            return all(isinstance(value, str | int | None) for value in get_args(hint))
        case origin:
            return origin in _PLAIN_ORIGINS and all(part is ... or is_plain(part) for part in get_args(hint))


def check_signature(signature: Signature, tool: str) -> None:
    """Raise UsageError, at definition, for a hint without a schema and for a default that is not JSON."""
    for parameter in signature.parameters:
        if not is_plain(parameter.hint):
            _check_hint(parameter, tool)
        if not parameter.required:
            default_value(parameter, tool)


def _check_hint(parameter: Parameter, tool: str) -> None:
    try:
        json_schema(adapter(parameter.hint))
    except UsageError as error:
        raise UsageError(
            f"tool {tool!r}: parameter {parameter.name!r}: {error}: use types that pydantic can validate"
        ) from error


def default_value(parameter: Parameter, tool: str) -> Any:
    """The default as JSON, for the schema. Raises UsageError if it has no such form."""
    default = parameter.default
    if default is None or type(default) in (str, int, bool):
        return default
    try:
        return json.loads(_json_text(default))
    except ValueError as error:
        raise UsageError(
            f"tool {tool!r}: the default of parameter {parameter.name!r}, {default!r}, cannot be serialised "
            f"({one_line(error)}): use None, and put the value in the body"
        ) from error


def _json_text(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return json.dumps(to_json(value), allow_nan=False)


def to_json(value: Any) -> Any:
    """A JSON-able copy by what the value is, NaN kept. Raises ValueError for what has no such form."""
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value)


def adapter(hint: Any) -> "Adapter":
    """A validator of a type. Raises UsageError for a type that pydantic does not know."""
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        # A defining frame's names are in the hint already; pydantic must not look for more in ours.
        return TypeAdapter(hint)
    except (PydanticUserError, TypeError, NameError) as error:
        raise UsageError(f"{hint!r} has no schema ({one_line(error)})") from error


def dumper(hint: Any) -> Callable[[Any], Any]:
    """What makes JSON-able data of values of a type, or by what they are if pydantic does not know the type."""
    try:
        serializer = adapter(hint).serializer
    except UsageError:
        return to_json
    return partial(serializer.to_python, mode="json", warnings=False)


def arguments_adapter(signature: Signature, tool: str, descriptions: Mapping[str, str]) -> "Adapter":
    """The validator of all arguments. Unknown ones are refused, absent ones stay absent: the body has defaults."""
    fields: dict[str, Any] = {}
    for one in signature.parameters:
        said: dict[str, Any] = {}
        if one.name in descriptions:
            said["description"] = descriptions[one.name]
        if not one.required:
            said["json_schema_extra"] = {"default": default_value(one, tool)}
        hint = _annotated(one.hint, said) if said else one.hint
        fields[one.name] = Required[hint] if one.required else NotRequired[hint]
    shape = _typed_dict(tool, fields)
    shape.__pydantic_config__ = {"extra": "forbid"}
    return adapter(shape)


def _annotated(hint: Any, said: dict[str, Any]) -> Any:
    from pydantic import Field

    bare, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    # Ours first: what the user wrote in a Field of the hint wins over the docstring.
    return Annotated[(bare, Field(**said), *metadata)]


def json_schema(of: "Adapter") -> dict[str, Any]:
    """The JSON schema of what an adapter takes, without the titles that pydantic makes of names."""
    from pydantic.errors import PydanticUserError
    from pydantic.json_schema import GenerateJsonSchema

    class Untitled(GenerateJsonSchema):
        def field_title_should_be_set(self, schema: Any) -> bool:
            del schema
            return False

    try:
        schema = of.json_schema(schema_generator=Untitled)
    except PydanticUserError as error:
        raise UsageError(one_line(error)) from error
    schema.pop("title", None)
    return schema


def problems(error: ValueError, names: tuple[str, ...] = ()) -> str:
    """A validation error as one line for each problem, for a model to read."""
    details = cast("Callable[..., list[dict[str, Any]]] | None", getattr(error, "errors", None))
    if details is None:
        return one_line(error)
    found = details(include_url=False, include_context=False, include_input=False)
    lines = [_problem(one, names) for one in found[:_MOST_PROBLEMS]]
    if len(found) > _MOST_PROBLEMS:
        lines.append(f"and {len(found) - _MOST_PROBLEMS} more")
    return "\n".join(lines)


def _problem(problem: dict[str, Any], names: tuple[str, ...]) -> str:
    place = ".".join(str(part) for part in problem["loc"])
    match problem["type"]:
        case "missing":
            said = "is required"
        case "extra_forbidden" if names:
            said = f"is not a parameter; there are: {', '.join(names)}"
        case _:
            said = problem["msg"]
    return f"{place}: {said}" if place else str(said)


def one_line(error: BaseException) -> str:
    """The first line of an error's text, without pydantic's links."""
    text = str(error).strip()
    return text.splitlines()[0].removesuffix(".") if text else type(error).__name__
