"""Traces of requests for a collector of OpenTelemetry: a span for each one, and below it one for
each of its answers, with vLLM's names. Both are parts of the client's own trace, if it sends
`traceparent` (W3C Trace Context)."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from launch.data.extras import library
from launch.serving.http.metrics import Timer
from launch.serving.requests import Request

_USER, _PACKAGE = "--otlp_traces_endpoint", "opentelemetry-exporter-otlp-proto-http"
_SPAN = "llm_request"
_TRACES: ContextVar["Traces | None"] = ContextVar("traces", default=None)


@dataclass(frozen=True)
class Traces:
    """Makes the spans of one server.

    Attributes:
      api: the module `opentelemetry.trace`.
      provider: keeps spans, and sends many at a time.
    """

    api: Any
    provider: Any

    @property
    def tracer(self) -> Any:
        """What begins spans."""
        return self.provider.get_tracer("neuronjax")

    def add_answer(self, request: Request, timer: Timer, began_ns: int) -> None:
        """Adds the span of an answer that has ended to that of the request under way."""
        span = self.tracer.start_span(_SPAN, start_time=began_ns)
        span.set_attributes(describe_answer(request, timer))
        if timer.finished == "error":
            span.set_status(self.api.StatusCode.ERROR)
        span.end()


def describe_answer(request: Request, timer: Timer) -> Mapping[str, Any]:
    """The attributes of an answer's span; times in seconds, on the device's clock if that is
    simulated."""
    sampling = request.sampling
    known: dict[str, Any] = {
        "gen_ai.request.id": request.id,
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.usage.prompt_tokens": request.tokens_read,
        "gen_ai.usage.completion_tokens": timer.tokens,
        "gen_ai.response.finish_reasons": [timer.finished or "cancelled"],
    }
    if timer.first is None or timer.last is None:
        return known
    to_first, whole = timer.first - timer.began, timer.last - timer.began
    return known | {
        "gen_ai.latency.time_in_queue": timer.waited,
        "gen_ai.latency.time_to_first_token": to_first,
        "gen_ai.latency.time_in_model_prefill": to_first - timer.waited,
        "gen_ai.latency.time_in_model_decode": whole - to_first,
        "gen_ai.latency.time_in_model_inference": whole - timer.waited,
        "gen_ai.latency.e2e": whole,
    }


@contextmanager
def traced_answers(requests: Sequence[Request], timers: Sequence[Timer]) -> Iterator[None]:
    """Adds a span for the answer to each request, which its timer has measured when the block ends,
    if requests are traced."""
    began_ns = time.time_ns()
    try:
        yield
    finally:
        traces = _TRACES.get()
        if traces is not None:
            for request, timer in zip(requests, timers, strict=True):
                traces.add_answer(request, timer, began_ns)


@contextmanager
def traced(app: ASGIApp, endpoint: str | None, name: str) -> Iterator[ASGIApp]:
    """The application; with an `endpoint`, the URL of a collector for OTLP over HTTP, its requests
    are traced until the block ends, as those of the service `name`."""
    if endpoint is None:
        yield app
        return
    traces = _open_traces(endpoint, name)
    try:
        yield _Traced(app, traces)
    finally:
        traces.provider.shutdown()  # sends what is left


def _open_traces(endpoint: str, name: str) -> Traces:
    api, sdk, export, resources, exporters = (
        library(f"opentelemetry.{module}", _PACKAGE, _USER)
        for module in (
            "trace",
            "sdk.trace",
            "sdk.trace.export",
            "sdk.resources",
            "exporter.otlp.proto.http.trace_exporter",
        )
    )
    resource = resources.Resource.create({"service.name": name})
    provider = sdk.TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = exporters.OTLPSpanExporter(endpoint=endpoint)
    provider.add_span_processor(export.BatchSpanProcessor(exporter))
    return Traces(api, provider)


class _Traced:
    """An application with a span for each POST request."""

    def __init__(self, app: ASGIApp, traces: Traces) -> None:
        self._app, self._traces = app, traces
        self._propagate = library("opentelemetry.propagate", _PACKAGE, _USER)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        api, path = self._traces.api, scope["path"]
        given = self._propagate.extract(dict(Headers(scope=scope)))
        attributes = {"http.request.method": "POST", "url.path": path}
        with self._traces.tracer.start_as_current_span(
            f"POST {path}", context=given, kind=api.SpanKind.SERVER, attributes=attributes
        ) as span:

            async def send_and_note(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                    if message["status"] >= 500:
                        span.set_status(api.StatusCode.ERROR)
                await send(message)

            token = _TRACES.set(self._traces)
            try:
                await self._app(scope, receive, send_and_note)
            finally:
                _TRACES.reset(token)
