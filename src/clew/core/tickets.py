"""Requests for outside input, and what closes them."""

from typing import Any, ClassVar, Literal, TypeAlias

from msgspec import Struct

from clew.core.spec import OnExpire
from clew.core.values import Digest, Value

TicketKind = Literal["approval", "question", "client_tool", "doubt", "limit", "sign_in"]


class Approve(Struct, frozen=True, tag="approve", tag_field="kind", omit_defaults=True, kw_only=True):
    """Let it happen. `remember` lets the same action pass for the rest of the run or thread."""

    kind: ClassVar[Literal["approve"]] = "approve"
    remember: Literal["run", "thread"] | None = None
    note: str = ""


class Edit(Struct, frozen=True, tag="edit", tag_field="kind", omit_defaults=True):
    """Let it happen with these arguments (all of them)."""

    kind: ClassVar[Literal["edit"]] = "edit"
    args: dict[str, Any]
    note: str = ""


class Reject(Struct, frozen=True, tag="reject", tag_field="kind", omit_defaults=True):
    """Do not let it happen; the message is what the model or the tool is told."""

    kind: ClassVar[Literal["reject"]] = "reject"
    message: str = ""


class Respond(Struct, frozen=True, tag="respond", tag_field="kind", omit_defaults=True):
    """Give the answer itself."""

    kind: ClassVar[Literal["respond"]] = "respond"
    value: Value = None


Decision: TypeAlias = Approve | Edit | Reject | Respond

# Which decisions answer which ticket; any other is refused before it is stored.
ALLOWED: dict[TicketKind, tuple[type[Decision], ...]] = {
    "approval": (Approve, Edit, Reject, Respond),
    "question": (Reject, Respond),
    "client_tool": (Reject, Respond),
    "doubt": (Approve, Reject, Respond),
    "limit": (Approve, Edit, Reject),
    "sign_in": (Approve, Reject, Respond),
}


class Ticket(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An open request for outside input, as it stands in the journal and in the store's ticket rows."""

    id: str
    run_id: str
    thread_id: str = ""
    kind: TicketKind
    call: str | None = None
    tool: str | None = None
    args: dict[str, Any] = {}
    args_digest: Digest | None = None
    action: str = ""
    prompt: str = ""
    schema: dict[str, Any] | None = None
    reason: str = ""
    opened_at: int = 0
    expires_at: int | None = None
    on_expire: OnExpire = "reject"
    path: tuple[str, ...] = ()
    decision: Decision | None = None
    decided_by: str | None = None

    @property
    def ref(self) -> str:
        return f"{self.run_id}/{self.id}"
