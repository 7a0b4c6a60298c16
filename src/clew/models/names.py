"""From what a user writes for a model, "provider:name" or an object, to the Model that is asked."""

from typing import cast

from clew.agent.shapes import model_list, provider_and_name
from clew.errors import Unsupported
from clew.ports import Model

PROVIDERS = ("anthropic", "google", "openai")


def resolve(model: object) -> Model:
    """The model that is asked. Raises UsageError for what is none, Unsupported for what this version cannot ask."""
    if hasattr(model, "stream"):
        return cast("Model", model)  # held against the protocol where it was given, which is dear
    only, *others = model_list(model)
    if others:
        raise Unsupported("a list of models to fall over comes with a later release: give one model")
    if isinstance(only, str):
        raise no_adapter(provider_and_name(only)[0])
    return only


def no_adapter(provider: str) -> Unsupported:
    return Unsupported(
        f"the adapter for provider {provider!r} comes with a later release: pass a Model object, such as "
        "clew.testing.ScriptedModel, or one of yours with name and stream"
    )
