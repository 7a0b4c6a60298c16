"""OpenAI, and whatever speaks its protocol: parameters only, until a later release brings the adapter."""

from collections.abc import AsyncIterator

from clew.errors import UsageError
from clew.models.names import no_adapter
from clew.ports import Fragment, ModelReply, ModelRequest


class OpenAIModel:
    """A model at OpenAI or, with `base_url`, at a server of its kind. Without a key, the provider's variable counts."""

    def __init__(self, model: str, *, api_key: str | None = None, base_url: str | None = None) -> None:
        if not model:
            raise UsageError("OpenAIModel needs the name of a model: say OpenAIModel('gpt-5-mini')")
        self.model = model
        self.api_key = api_key
        self.base_url = base_url

    @property
    def name(self) -> str:
        return f"openai:{self.model}"

    def __repr__(self) -> str:
        # Without the key.
        return f"OpenAIModel({self.model!r}, base_url={self.base_url!r})"

    def stream(self, request: ModelRequest, /) -> AsyncIterator[Fragment | ModelReply]:
        """Raises Unsupported in this release."""
        del request
        raise no_adapter("openai")
