"""What `@tool` makes of a function: declaration, schema, checks of arguments, data of results."""

import math
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from functools import wraps
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, SecretStr

from clew import RunContext, Tool, ToolContext, ToolOutput, tool
from clew.errors import UsageError
from clew.testing import tool_context


class Colour(Enum):
    red = "red"
    blue = "blue"


class Address(BaseModel):
    street: str
    number: int = 1


@dataclass
class Point:
    x: float
    y: float


@tool(effect="read", timeout=30)
def weather(city: str, days: int = 3) -> str:
    """What the weather is in a town."""
    return f"Sunny in {city} for {days}"


@tool
async def pay(ctx: ToolContext[list[str]], invoice: str, amount: Decimal) -> dict[str, str]:
    """Pay an invoice."""
    ctx.deps.append(invoice)
    return {"paid": str(amount)}


class TestDeclaration:
    def test_calling_a_tool_calls_the_function(self) -> None:
        assert weather("Oslo") == "Sunny in Oslo for 3"
        assert weather(city="Oslo", days=1) == "Sunny in Oslo for 1"

    async def test_an_async_tool_is_awaited_as_the_function_is(self) -> None:
        books: list[str] = []
        assert await pay(tool_context(books), "A-1", Decimal(3)) == {"paid": "3"}
        assert books == ["A-1"]

    def test_it_says_what_it_is(self) -> None:
        assert (weather.name, weather.description) == ("weather", "What the weather is in a town.")
        assert not weather.is_async
        assert not weather.takes_context
        assert pay.is_async
        assert pay.takes_context
        assert repr(weather) == "Tool('weather', effect='read')"

    def test_name_and_description_can_be_given(self) -> None:
        made = tool(name="look-up", description="Finds things.")(lambda: "x")
        assert (made.name, made.description, made.schema) == (
            "look-up",
            "Finds things.",
            {"properties": {}, "type": "object", "additionalProperties": False},
        )

    def test_the_spec_holds_what_was_declared(self) -> None:
        spec = weather.spec
        assert (spec.effect, spec.timeout, spec.schema, spec.client) == ("read", 30.0, weather.schema, False)
        asks = tool(needs_approval=lambda ctx, args: True, verify=lambda ctx: None, sequential=True)(_nothing).spec  # type: ignore[arg-type, return-value]
        assert (asks.needs_approval, asks.verifies, asks.sequential, asks.effect) == (True, True, True, "once")

    def test_a_run_context_is_a_context_too(self) -> None:
        @tool
        def who(ctx: RunContext, name: str) -> str:
            return name

        assert who.takes_context
        assert list(who.schema["properties"]) == ["name"]

    def test_a_decorated_async_function_stays_async(self) -> None:
        def logged(fn: Any) -> Any:
            @wraps(fn)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                return fn(*args, **kwargs)

            return wrapper

        @tool
        @logged
        async def slow(n: int) -> int:
            return n

        assert slow.is_async
        assert slow.schema["required"] == ["n"]

    def test_a_method_of_an_object(self) -> None:
        class Shop:
            def find(self, sku: str) -> str:
                return sku

        made = tool(Shop().find)
        assert made.name == "find"
        assert made.validate({"sku": "a"}) == {"sku": "a"}
        assert made("a") == "a"

    def test_types_of_the_surrounding_function_are_found(self) -> None:
        class Local(BaseModel):
            x: int

        @tool
        def use(local: "Local", n: "int" = 1) -> str:
            return ""

        assert use.validate({"local": {"x": 1}}) == {"local": Local(x=1)}

        @tool(effect="read")
        def again(local: "Local") -> str:
            return ""

        assert again.validate({"local": {"x": 2}}) == {"local": Local(x=2)}


class TestSchema:
    def test_hints_defaults_and_refusal_of_the_rest(self) -> None:
        assert weather.schema == {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 3}},
            "required": ["city"],
            "additionalProperties": False,
        }

    @pytest.mark.parametrize(
        "doc",
        [
            pytest.param(
                "Pays.\n\nArgs:\n    invoice: Its\n        number.\n    amount (Decimal): In euros.", id="google"
            ),
            pytest.param(
                "Pays.\n\nParameters\n----------\ninvoice : str\n    Its number.\namount\n    In euros.", id="numpy"
            ),
            pytest.param(
                "Pays.\n\n:param invoice: Its number.\n:param Decimal amount: In euros.\n:returns: A receipt.",
                id="sphinx",
            ),
        ],
    )
    def test_a_docstring_describes_parameters(self, doc: str) -> None:
        def fn(invoice: str, amount: Decimal = Decimal(1)) -> str:
            return ""

        fn.__doc__ = doc
        made = tool(fn)
        properties = made.schema["properties"]
        assert made.description == "Pays."
        assert properties["invoice"] == {"type": "string", "description": "Its number."}
        assert properties["amount"]["description"] == "In euros."

    def test_the_rest_of_a_docstring_is_for_the_model(self) -> None:
        @tool
        def find(q: str) -> str:
            """Find things.

            Use it often.

            Note:
                It is slow.

            Args:
                q: What to find.

            Returns:
                Things.

            Examples:
                >>> find("x")
                'y'
            """
            return ""

        assert find.description == (
            "Find things.\n\nUse it often.\n\nNote: It is slow.\n\nExamples:\n>>> find(\"x\")\n'y'"
        )

    def test_a_field_of_the_hint_wins_over_the_docstring(self) -> None:
        @tool
        def find(n: Annotated[int, Field(description="mine", gt=0)] = 1) -> str:
            """Find.

            Args:
                n: the docstring's
            """
            return ""

        assert find.schema["properties"]["n"] == {
            "type": "integer",
            "description": "mine",
            "exclusiveMinimum": 0,
            "default": 1,
        }

    def test_a_docstring_without_text(self) -> None:
        assert tool(_nothing).description == ""

    def test_models_enums_and_dataclasses(self) -> None:
        @tool
        def all_kinds(
            address: Address,
            point: Point,
            colour: Colour = Colour.red,
            how: Literal["air", "sea"] = "air",
            when: date | None = None,
            tags: list[str] = [],  # noqa: B006
        ) -> str:
            return ""

        properties = all_kinds.schema["properties"]
        assert properties["address"] == {"$ref": "#/$defs/Address"}
        assert properties["colour"] == {"$ref": "#/$defs/Colour", "default": "red"}
        assert properties["how"] == {"enum": ["air", "sea"], "type": "string", "default": "air"}
        assert properties["tags"]["default"] == []
        assert all_kinds.schema["required"] == ["address", "point"]
        args = {"address": {"street": "x"}, "point": {"x": 1, "y": 2}, "colour": "blue", "when": "2026-01-02"}
        assert all_kinds.validate(args) == {
            "address": Address(street="x"),
            "point": Point(1, 2),
            "colour": Colour.blue,
            "when": date(2026, 1, 2),
        }


class TestValidation:
    def test_arguments_become_what_the_hints_say(self) -> None:
        assert pay.validate({"invoice": "A", "amount": "10.50"}) == {"invoice": "A", "amount": Decimal("10.50")}

    def test_absent_ones_stay_absent(self) -> None:
        assert weather.validate({"city": "Oslo"}) == {"city": "Oslo"}

    def test_a_number_written_as_text_is_taken(self) -> None:
        assert weather.validate({"city": "Oslo", "days": "2"}) == {"city": "Oslo", "days": 2}

    def test_each_problem_is_one_line_for_the_model(self) -> None:
        with pytest.raises(ValueError, match="city") as caught:
            weather.validate({"days": "many", "town": "Oslo"})
        assert str(caught.value).splitlines() == [
            "city: is required",
            "days: Input should be a valid integer, unable to parse string as an integer",
            "town: is not a parameter; there are: city, days",
        ]

    def test_nested_places_are_named_and_no_more_than_ten(self) -> None:
        @tool
        def add(addresses: list[Address]) -> str:
            return ""

        with pytest.raises(ValueError, match="addresses") as caught:
            add.validate({"addresses": [{"street": 1}] * 12})
        lines = str(caught.value).splitlines()
        assert lines[0] == "addresses.0.street: Input should be a valid string"
        assert (len(lines), lines[-1]) == (11, "and 2 more")
        assert "http" not in str(caught.value)

    @pytest.mark.parametrize("args", [{"city": None}, {"city": ["x"]}, {"city": 2**70}])
    def test_what_does_not_fit_is_a_value_error(self, args: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="city"):
            weather.validate(args)

    def test_huge_numbers_and_nan_are_arguments_like_any_other(self) -> None:
        @tool
        def measure(n: int, x: float) -> str:
            return ""

        checked = measure.validate({"n": 10**40, "x": float("nan")})
        assert checked["n"] == 10**40
        assert math.isnan(checked["x"])


class TestDump:
    @pytest.mark.parametrize("value", ["text", None, True, 7, 2**70, 1.5, ""])
    def test_plain_values_are_dumped_as_they_are(self, value: object) -> None:
        assert tool(_nothing).dump(value) is value

    def test_nan_is_kept_also_inside(self) -> None:
        dumped = tool(_nothing).dump({"a": [float("nan")], "b": Point(float("inf"), 1)})
        assert math.isnan(dumped["a"][0])
        assert dumped["b"] == {"x": math.inf, "y": 1}

    def test_by_the_return_hint_where_it_says_more(self) -> None:
        @tool
        def secret() -> SecretStr:
            return SecretStr("x")

        @tool
        def receipts() -> list[Address] | ToolOutput:
            return []

        assert secret.dump(SecretStr("key")) == "**********"
        assert receipts.dump([Address(street="x")]) == [{"street": "x", "number": 1}]

    def test_by_what_it_is_where_there_is_no_hint_or_a_wrong_one(self) -> None:
        @tool  # type: ignore[no-untyped-call]
        def unsaid():  # type: ignore[no-untyped-def]
            return 1

        @tool
        def wrong() -> Address:
            raise NotImplementedError

        @tool
        def opaque() -> "Opaque":
            raise NotImplementedError

        for made in (unsaid, wrong, opaque):
            assert made.dump([Decimal("1.50"), date(2026, 1, 2), {1: Colour.red}]) == [
                "1.50",
                "2026-01-02",
                {"1": "red"},
            ]

    @pytest.mark.parametrize("value", [object(), {"x": lambda: 1}, b"\xff", Exception("x")])
    def test_what_cannot_be_dumped_is_named(self, value: object) -> None:
        with pytest.raises(
            UsageError, match=r"tool 'weather' returned a value of type \w+, which cannot be dumped .*: return text"
        ):
            weather.dump(value)

    def test_a_value_in_a_circle(self) -> None:
        circle: list[Any] = []
        circle.append(circle)
        with pytest.raises(UsageError, match="list"):
            weather.dump(circle)


class Opaque:
    pass


def _nothing() -> None: ...


def _takes(n: int) -> None: ...


class TestBadDefinitions:
    def test_a_parameter_without_a_hint(self) -> None:
        with pytest.raises(UsageError, match="tool 'f': parameter 'x' has no type hint: say x: str"):

            @tool
            def f(x) -> str:  # type: ignore[no-untyped-def]
                return ""

    def test_stars_and_positional_only(self) -> None:
        def stars(*args: int) -> None: ...
        def options(**kwargs: int) -> None: ...
        def positional(x: int, /) -> None: ...

        for fn, said in ((stars, r"\*args"), (options, r"\*\*kwargs"), (positional, "'x' is positional-only")):
            with pytest.raises(UsageError, match=f"tool '{fn.__name__}': .*{said}"):
                tool(fn)

    @pytest.mark.parametrize("default", [object(), math.nan, math.inf, [math.nan], {"x": object()}, lambda: 1])
    def test_a_default_that_cannot_be_serialised(self, default: object) -> None:
        def f(x: Any = default) -> None: ...

        with pytest.raises(
            UsageError, match=r"tool 'f': the default of parameter 'x', .*cannot be serialised .*: use None"
        ):
            tool(f)

    def test_a_hint_that_pydantic_does_not_know(self) -> None:
        def f(x: int, y: Opaque) -> None: ...

        with pytest.raises(UsageError, match=r"tool 'f': parameter 'y': .*Opaque.* has no schema"):
            tool(f)

    def test_a_hint_that_has_no_json_schema(self) -> None:
        def f(callback: "Any", y: type[Opaque] | Annotated[Any, "x"] = Opaque) -> None: ...

        with pytest.raises(UsageError, match=r"tool 'f': .*'y'"):
            tool(f)

    def test_a_hint_that_does_not_resolve(self) -> None:
        def f(x: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

        with pytest.raises(UsageError, match=r"tool 'f': a type hint does not resolve .*Nowhere.*TYPE_CHECKING"):
            tool(f)

    def test_a_model_that_is_not_defined_yet(self) -> None:
        class Later(BaseModel):
            x: "Nowhere"  # type: ignore[name-defined]  # noqa: F821

        def f(x: Later) -> None: ...

        with pytest.raises(UsageError, match=r"tool 'f': parameter 'x': .*not fully defined"):
            tool(f)

    def test_a_context_that_is_not_first(self) -> None:
        def f(x: int, ctx: ToolContext) -> None: ...

        with pytest.raises(UsageError, match="tool 'f': the context 'ctx' must be the first parameter"):
            tool(f)

    @pytest.mark.parametrize("name", ["", "a b", "naïve", "x" * 65, "a.b", 3])
    def test_a_name_that_no_provider_takes(self, name: Any) -> None:
        with pytest.raises(UsageError, match="tool name"):
            tool(name=name)(_nothing)

    def test_a_lambda_has_no_name(self) -> None:
        with pytest.raises(UsageError, match=r"'<lambda>'.*name="):
            tool(lambda: 1)

    @pytest.mark.parametrize("thing", [3, Opaque(), Opaque, "pay", weather])
    def test_what_is_no_function(self, thing: Any) -> None:
        with pytest.raises(UsageError, match=r"@tool takes a function|tool name"):
            tool(thing)

    def test_a_generator(self) -> None:
        def f() -> Any:
            yield 1

        with pytest.raises(UsageError, match="tool 'f' is a generator: return one value"):
            tool(f)

    def test_retries_of_a_once_tool_need_a_way_to_know(self) -> None:
        with pytest.raises(UsageError, match=r"tool '_nothing': retries=2 would repeat .*verify= or retry_on="):
            tool(retries=2)(_nothing)
        assert tool(retries=2, effect="idempotent")(_nothing).spec.retries == 2
        assert tool(retries=2, retry_on=OSError)(_nothing).retry_on == (OSError,)
        assert tool(retries=2, retry_on=[OSError, KeyError])(_nothing).retry_on == (OSError, KeyError)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"timeout": 0}, "timeout=0: it must be more than zero"),
            ({"timeout": -1}, "timeout=-1"),
            ({"timeout": math.nan}, "timeout=nan"),
            ({"timeout": math.inf}, "timeout=inf"),
            ({"timeout": "1"}, "timeout='1': give seconds"),
            ({"timeout": True}, "timeout=True"),
            ({"expires": 0}, "expires=0"),
            ({"effect": "write"}, "effect='write': use 'once' or 'idempotent' or 'read'"),
            ({"on_doubt": "guess"}, "on_doubt='guess': use 'ask'"),
            ({"on_expire": "explode"}, "on_expire='explode'"),
            ({"retries": -1}, "retries=-1: give a whole number"),
            ({"retries": 1.5}, "retries=1.5"),
            ({"retry_on": ["OSError"]}, "retry_on names exception classes, not 'OSError'"),
            ({"retry_on": 5}, "retry_on names exception classes, not 5"),
            ({"verify": True}, "verify=True: give a function"),
            ({"needs_approval": "yes"}, "needs_approval='yes': give a function"),
            ({"action_key": 3}, "action_key=3: give a function"),
            ({"description": "\ud800"}, "description: text holds a lone surrogate"),
            ({"retires": 3}, "retires.*its options are effect"),
        ],
    )
    def test_an_option_that_cannot_work(self, options: dict[str, Any], said: str) -> None:
        with pytest.raises(UsageError, match=said):
            tool(**options)(_takes)

    def test_the_tool_is_named_in_what_is_wrong(self) -> None:
        with pytest.raises(UsageError, match="tool '_takes': timeout=0"):
            tool(timeout=0)(_takes)


def test_a_tool_is_a_tool() -> None:
    assert isinstance(weather, Tool)
