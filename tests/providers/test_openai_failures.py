"""What goes wrong at the Chat Completions API and its compatible servers, classified."""

import json

import pytest

from refold import ProviderError
from refold.providers.openai.provider import OpenAIFormat


def failure(status: int, body: object) -> ProviderError:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    error = OpenAIFormat().failure(status, {}, data)
    assert error.status == status
    assert error.retry_after_s is None
    return error


def bad(message: str, kind: str = "BadRequestError", code: int | None = 400) -> dict[str, object]:
    return {"message": message, "type": kind, "code": code}


TOO_LONG = "maximum context length is 8192 tokens"
GEMINI = {"code": 400, "message": "The input token count (9) exceeds the maximum", "status": "INVALID_ARGUMENT"}


def official(code: object, kind: str = "invalid_request_error", message: str = "No.") -> dict[str, object]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


@pytest.mark.parametrize(
    ("status", "body", "kind", "retryable"),
    [
        (400, official(None), "invalid_request", False),
        (400, official("context_length_exceeded"), "context_too_long", False),
        (400, official("content_policy_violation"), "invalid_request", False),
        (401, official("invalid_api_key"), "auth", False),
        (402, official(None), "auth", False),
        (403, official("unsupported_country_region_territory", "request_forbidden"), "auth", False),
        (404, official("model_not_found"), "invalid_request", False),
        (408, official(None), "timeout", True),
        (409, official(None), "server", True),
        (413, official(None), "context_too_long", False),
        (422, official(None), "invalid_request", False),
        (429, official("rate_limit_exceeded", "tokens"), "rate_limit", True),
        (429, official("rate_limit_exceeded", "tokens", "Rate limit: maximum context length"), "rate_limit", True),
        (429, official("slow_down", "rate_limit_error"), "rate_limit", True),
        (429, official("insufficient_quota", "insufficient_quota"), "rate_limit", False),
        (429, official("project_spend_limit_exceeded", "insufficient_quota"), "rate_limit", False),
        (429, official(None, "insufficient_quota"), "rate_limit", False),
        (500, official(None, "server_error"), "server", True),
        (500, official(None, "invalid_request_error"), "server", True),
        (501, official(None), "server", False),
        (502, b"<html><head><title>502 Bad Gateway</title></head></html>", "server", True),
        (503, official("server_is_overloaded", "service_unavailable_error"), "overloaded", True),
        (504, b"", "timeout", True),
        (520, b"", "server", True),
        (524, b"error code: 524", "timeout", True),
        (529, b"{}", "overloaded", True),
        (302, b"", "unknown", False),
        (418, b"", "invalid_request", False),
    ],
)
def test_statuses(status: int, body: object, kind: str, retryable: bool) -> None:
    error = failure(status, body)
    assert (error.kind, error.retryable) == (kind, retryable)


def test_an_error_names_its_code_and_its_type_once() -> None:
    both = failure(401, official("invalid_api_key"))
    assert str(both) == "openai answered with status 401 (invalid_api_key, invalid_request_error): No."
    same = failure(429, official("insufficient_quota", "insufficient_quota"))
    assert str(same) == "openai answered with status 429 (insufficient_quota): No."
    assert str(failure(500, {})) == "openai answered with status 500: no reason given"


@pytest.mark.parametrize(
    ("status", "body", "kind", "said"),
    [
        # vLLM, old and new
        (400, {"object": "error", **bad(f"This model's {TOO_LONG}.")}, "context_too_long", TOO_LONG),
        (404, {"error": bad("The model `x` does not exist.", "NotFoundError", 404)}, "invalid_request", "`x`"),
        (400, {"error": {**bad("m"), "param": None}}, "invalid_request", "m"),
        # llama.cpp
        (400, {"error": bad("too big", "exceed_context_size_error")}, "context_too_long", "too big"),
        (503, {"error": bad("Loading model", "unavailable_error", 503)}, "overloaded", "Loading model"),
        # Ollama, LM Studio
        (404, {"error": {**bad('model "x" not found', "api_error", None), "param": None}}, "invalid_request", "x"),
        (400, {"error": "json: cannot unmarshal"}, "invalid_request", "cannot unmarshal"),
        # Gemini's compatible endpoint
        (400, [{"error": GEMINI}], "context_too_long", "input token count"),
        # OpenRouter
        (402, {"error": {"message": "Insufficient credits", "code": 402}}, "auth", "Insufficient credits"),
        # FastAPI, gateways
        (422, {"detail": [{"loc": ["body", "model"], "msg": "field required"}]}, "invalid_request", "field required"),
        (401, {"detail": "Not authenticated"}, "auth", "Not authenticated"),
        (403, {"message": "Forbidden"}, "auth", "Forbidden"),
        (500, {"error": {"message": "the prompt exceeds the context window"}}, "context_too_long", "context window"),
        (502, b"<!DOCTYPE html>\n<TITLE>\n Bad\n gateway </TITLE>", "server", "Bad gateway"),
        (502, b"<p>no title", "server", "a web page"),
        (500, b"plain words", "server", "plain words"),
        (500, b"\xff\xfe\x00", "server", "\ufffd"),
        (500, [], "server", "no reason given"),
        (500, None, "server", "no reason given"),
        (500, 7, "server", "7"),
        (500, {"error": None, "message": None}, "server", "no reason given"),
        (500, {"error": {"message": {"deep": "words"}}}, "server", "words"),
        (500, {"error": {"code": [], "type": 3, "message": "hm"}}, "server", "hm"),
        pytest.param(500, b"[" * 100_000, "server", "[", id="deep"),
        pytest.param(500, b'{"error":' * 100_000, "server", "error", id="deep error"),
    ],
)
def test_what_other_servers_say(status: int, body: object, kind: str, said: str) -> None:
    error = failure(status, body)
    assert error.kind == kind
    assert said in str(error)
    assert str(error).startswith(f"openai answered with status {status}")
    assert len(str(error)) < 1200


def test_long_and_unprintable_words_are_cut_and_cleaned() -> None:
    error = failure(400, {"error": {"message": "x\n\ud83d" + "y" * 10_000, "code": "z" * 10_000}})
    assert "x \ufffdyyy" in str(error)
    assert len(str(error)) < 1200
    assert error.kind == "invalid_request"


@pytest.mark.parametrize("depth", range(100, 1100, 100))
def test_no_depth_does_harm(depth: int) -> None:
    error = failure(500, b'{"detail":' + b'[{"x":' * depth + b"1" + b"}]" * depth + b"}")
    assert (error.kind, error.retryable) == ("server", True)


@pytest.mark.parametrize(("told", "retryable"), [("true", True), ("false", False), ("perhaps", True)])
def test_the_server_has_the_last_word_on_retrying(told: str, retryable: bool) -> None:
    error = OpenAIFormat().failure(500, {"X-Should-Retry": told}, b"{}")
    assert (error.kind, error.retryable) == ("server", retryable)
