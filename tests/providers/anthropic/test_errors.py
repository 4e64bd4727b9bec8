"""Errors of the Messages API: their kind, whether to ask again, and what they say."""

import json
from typing import Any

import pytest

from refold import ProviderError
from refold.providers.anthropic.provider import AnthropicFormat


def failure(status: int, body: object = None, **headers: str) -> ProviderError:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return AnthropicFormat().failure(status, {name.replace("_", "-"): value for name, value in headers.items()}, data)


def said(error_type: str, text: str = "Sorry.") -> dict[str, Any]:
    return {"type": "error", "error": {"type": error_type, "message": text}}


@pytest.mark.parametrize(
    ("status", "error_type", "kind", "retryable"),
    [
        (400, "invalid_request_error", "invalid_request", False),
        (401, "authentication_error", "auth", False),
        (402, "billing_error", "auth", False),
        (403, "permission_error", "auth", False),
        (404, "not_found_error", "invalid_request", False),
        (408, "timeout_error", "timeout", True),
        (409, "conflict_error", "invalid_request", True),
        (413, "request_too_large", "context_too_long", False),
        (429, "rate_limit_error", "rate_limit", True),
        (500, "api_error", "server", True),
        (502, "api_error", "server", True),
        (503, "overloaded_error", "overloaded", True),
        (504, "timeout_error", "timeout", True),
        (529, "overloaded_error", "overloaded", True),
    ],
)
def test_an_error_is_classified_by_its_type_and_without_one_by_its_status(
    status: int, error_type: str, kind: str, retryable: bool
) -> None:
    error = failure(status, said(error_type))
    assert (error.kind, error.retryable, error.status) == (kind, retryable, status)
    others: list[object] = [said("never_heard_of"), {"error": "Sorry."}, [], b"<html></html>", b""]
    for other in others:
        error = failure(status, other)
        assert (error.kind, error.retryable, error.status) == (kind, retryable, status)


BOUND_ELSEWHERE = (
    "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation."
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("prompt is too long: 208310 tokens > 200000 maximum", "context_too_long"),
        ("input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000, decrease", "context_too_long"),
        ("request (9000 tokens) exceeds the available context size (8192 tokens)", "context_too_long"),
        ("messages: text content blocks must be non-empty", "invalid_request"),
        (BOUND_ELSEWHERE, "invalid_request"),
    ],
)
def test_a_context_that_is_too_long_and_thinking_that_does_not_fit_are_told_apart(text: str, kind: str) -> None:
    error = failure(400, said("invalid_request_error", text))
    assert error.kind == kind
    assert ("drop_stale_thinking=True" in str(error)) == (text == BOUND_ELSEWHERE)


def test_the_server_says_whether_to_ask_again() -> None:
    assert failure(429, said("rate_limit_error"), X_Should_Retry="false").retryable is False
    assert failure(400, said("invalid_request_error"), x_should_retry="true").retryable is True


def test_an_error_says_what_happened_and_which_request_it_was() -> None:
    error = failure(429, {**said("rate_limit_error", "Slow  down,\nplease."), "request_id": "req_body"})
    assert str(error) == "the Messages API answered HTTP 429 rate_limit_error: Slow down, please. (request req_body)"
    assert str(failure(500, said("api_error"), Request_Id="req_header")).endswith("(request req_header)")
    assert len(str(failure(400, said("invalid_request_error", "x" * 100_000)))) < 600
    assert "\ud800" not in str(failure(400, b'{"error": {"message": "\\ud800"}}'))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "an empty body"),
        (b"<!DOCTYPE html><html><title> 502 Bad\nGateway </title>", "an HTML page titled '502 Bad Gateway'"),
        (b"<html>", "an HTML page"),
        (b"upstream connect error", "not JSON: upstream connect error"),
        (b"\xff\xfe" * 5000, "not JSON: " + "\ufffd" * 120 + "…"),
        (b'{"message": "no healthy upstream"}', "no healthy upstream"),
        (b'{"detail": [1]}', "a JSON object that does not say what is wrong"),
    ],
)
def test_a_body_that_is_not_the_apis_gives_a_short_clear_text(body: bytes, expected: str) -> None:
    assert str(failure(502, body)) == f"the Messages API answered HTTP 502: {expected}"
