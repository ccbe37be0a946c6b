"""Traces of requests, as a collector of OpenTelemetry gets them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from launch.serving.config import ServerConfig
from launch.serving.runner.runner import Runner
from tests.serving.http_server import NAME, running

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SENT = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


class Collector(ThreadingHTTPServer):
    """Keeps the spans that it is sent, by their names."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: dict[str, list[Any]] = {}
        self.services: set[str] = set()


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        sent = ExportTraceServiceRequest()
        data = self.rfile.read(int(self.headers["content-length"]))
        assert self.headers.get("content-encoding") is None
        sent.ParseFromString(data)
        for group in sent.resource_spans:
            named = {entry.key: entry.value.string_value for entry in group.resource.attributes}
            self.server.services.add(named["service.name"])
            for scope in group.scope_spans:
                for span in scope.spans:
                    self.server.spans.setdefault(span.name, []).append(span)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    with Collector() as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        yield collector, f"http://127.0.0.1:{collector.server_address[1]}/v1/traces"
        collector.shutdown()


def attributes(span: Any) -> dict[str, Any]:
    return {
        entry.key: getattr(entry.value, entry.value.WhichOneof("value"))
        for entry in span.attributes
    }


def test_requests_and_their_answers(byte_runner: Runner) -> None:
    """All spans have come when the server has ended."""
    ask = {"prompt": "abc", "max_tokens": 6, "ignore_eos": True}
    with collecting() as (collector, url):
        config = ServerConfig(port=0, otlp_traces_endpoint=url)
        with running(byte_runner, config) as server:
            assert server.ask("/v1/completions", ask | {"n": 2}, headers=SENT)[0] == 200
            assert server.ask("/v1/completions", ask | {"stream": True})[0] == 200
            assert server.ask("/v1/completions", {"prompt": "a", "max_tokens": -1})[0] == 400
            assert server.ask("/health")[0] == 200
    assert collector.services == {NAME}
    whole, streamed, refused = collector.spans["POST /v1/completions"]
    assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == (TRACE, PARENT)
    assert streamed.parent_span_id == b""
    statuses = [
        attributes(span)["http.response.status_code"] for span in (whole, streamed, refused)
    ]
    assert statuses == [200, 200, 400]
    answers = collector.spans["llm_request"]
    assert [span.parent_span_id for span in answers] == [*[whole.span_id] * 2, streamed.span_id]
    for span in answers:
        told = attributes(span)
        assert told["gen_ai.usage.prompt_tokens"] == 3
        assert told["gen_ai.usage.completion_tokens"] == 6
        assert told["gen_ai.latency.e2e"] >= told["gen_ai.latency.time_to_first_token"] > 0
        assert whole.start_time_unix_nano <= span.start_time_unix_nano < span.end_time_unix_nano
    assert len(collector.spans) == 2


def test_a_collector_that_is_not_there(byte_runner: Runner) -> None:
    """Answers come all the same, and the server ends."""
    config = ServerConfig(port=0, otlp_traces_endpoint="http://127.0.0.1:9/v1/traces")
    with running(byte_runner, config) as server:
        assert server.ask("/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200
