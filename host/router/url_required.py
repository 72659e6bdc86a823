"""The error of a server that requires the user to visit web pages before a call (2025-11-25, "URL Elicitation Required
Error"), in the form of the caller's revision, and only if the server may request such visits."""

from __future__ import annotations

from config import Verdict
from host.errors import Forbidden, MissingAbility, ProtocolViolation, ServerErrorResponse, UpstreamError
from host.exchange import Caller, InputRequired
from host.jsonrpc.raw import encode, string
from host.policy.gate import CallPermit, WatchPermit
from host.policy.server_requests import ServerRequests
from host.protocol.methods import SUBSCRIBE, TARGETED
from host.protocol.mrtr import MAX_KEYS
from host.protocol.server_requests import ELICIT, ServerRequest, capability_of, elicitation_params_of, urls_required
from host.upstream.mrtr import MAX_STATE

_NOT_ALLOWED = "{} wants a web page to be visited first, which it was not allowed to ask for"


async def admit_urls(requests: ServerRequests, refusal: ServerErrorResponse, permit: CallPermit) -> None:
    """Check that the user may be sent to all of the pages, and record it.

    Raises:
        Forbidden, Unconfirmed, TooManyRequests, StaleApproval: at least one of the pages is not allowed.
    """
    server, caller = permit.ref.server, permit.exchange.caller
    for page in elicitation_params_of(refusal.data) or ():
        try:
            allowed = await requests.admit(server, ServerRequest.URL, page, caller)
        except Forbidden:
            raise Forbidden(server, _NOT_ALLOWED.format(server)) from None
        with requests.dispatch(allowed) as record:
            record.end("handed on")


def url_input_required(refusal: ServerErrorResponse, permit: CallPermit) -> InputRequired:
    """The pages as input of a stateless caller, which then sends its request again from the beginning."""
    server, pages = permit.ref.server, elicitation_params_of(refusal.data)
    if pages is None:
        raise ProtocolViolation(server, f"{server} wants pages to be visited and does not say which")
    if len(pages) > MAX_KEYS or len(refusal.data or b"") > MAX_STATE:  # the caller carries them in its state
        raise ProtocolViolation(server, f"{server} wants too many pages to be visited at once")
    if not permit.exchange.caller.abilities.url:
        data = encode({"requiredCapabilities": capability_of(ServerRequest.URL)})
        raise MissingAbility(f"{server} wants a web page to be visited first", data=data)
    pages_by_key = {f"page{at}": (ELICIT, page) for at, page in enumerate(pages)}
    return InputRequired(server, pages_by_key, None, restarts=True)


def url_required_error(
    requests: ServerRequests, refusal: ServerErrorResponse, permit: CallPermit | WatchPermit
) -> UpstreamError:
    """The error for a handshake caller: the server's own if the client can open pages, otherwise a text that names the
    pages."""
    server, caller = permit.ref.server, permit.exchange.caller
    confirmable = permit.exchange.request.method in TARGETED  # otherwise no person is asked
    if not requests.allows(server, ServerRequest.URL, caller) or not (
        confirmable or _are_urls_allowed(requests, refusal, server, caller)
    ):
        return Forbidden(server, _NOT_ALLOWED.format(server))
    # Several clients may share a subscription: its pages have no ids of the caller's own.
    if caller.abilities.url and permit.exchange.request.method != SUBSCRIBE:
        known = elicitation_params_of(refusal.data) is not None  # otherwise nobody has evaluated the pages
        return refusal if known else ServerErrorResponse(server, refusal.code, refusal.message, None)
    pages = "; ".join(f"{message} {url}".strip() for message, url in urls_required(refusal.data))
    return Forbidden(server, f"{server} wants this to be visited first, then ask again: {pages or refusal.message}")


def _are_urls_allowed(requests: ServerRequests, refusal: ServerErrorResponse, server: str, caller: Caller) -> bool:
    """Whether the rules allow all of these pages without a confirmation."""
    pages = [string(page["url"]) for page in elicitation_params_of(refusal.data) or ()]
    decisions = [requests.evaluate(server, ServerRequest.URL, url, caller) for url in pages]
    return all(decision.verdict is Verdict.ALLOW for decision in decisions)
