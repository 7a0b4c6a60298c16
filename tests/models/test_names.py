"""From what a user writes to the model that is asked."""

from typing import Any

import pytest

from clew.errors import Unsupported, UsageError
from clew.models import OpenAIModel, resolve
from clew.ports import Model, ModelRequest
from clew.testing import ScriptedModel


def test_a_model_is_itself() -> None:
    model = ScriptedModel([])
    assert resolve(model) is model
    assert resolve([model]) is model


def test_a_provider_without_adapter() -> None:
    with pytest.raises(Unsupported, match="the adapter for provider 'openai' comes with a later release: pass a Model"):
        resolve("openai:gpt-5-mini")


def test_a_list_to_fall_over() -> None:
    with pytest.raises(Unsupported, match="fall over"):
        resolve([ScriptedModel([]), "openai:x"])


@pytest.mark.parametrize("model", ["gpt-5", "", ":", None, 3, [], b"openai:x"])
def test_what_is_no_model(model: Any) -> None:
    with pytest.raises(UsageError, match="provider:name"):
        resolve(model)


def test_openai_carries_its_parameters_and_no_more_yet() -> None:
    model = OpenAIModel("qwen", api_key="secret", base_url="http://127.0.0.1:8000/v1")
    assert (model.name, model.model, model.base_url) == ("openai:qwen", "qwen", "http://127.0.0.1:8000/v1")
    assert "secret" not in repr(model)
    assert isinstance(model, Model)
    with pytest.raises(Unsupported, match="adapter for provider 'openai'"):
        model.stream(ModelRequest())
    with pytest.raises(UsageError, match="name of a model"):
        OpenAIModel("")
