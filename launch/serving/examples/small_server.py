"""A server to read first: completions on the scheduler and the engine of `launch.serve`, in one
process and one file, without its front (limits, keys, chats, metrics, other APIs).

    python -m launch.serving.examples.small_server --model=DIR --port=8001
    curl localhost:8001/v1/completions --json '{"prompt": "The ", "max_tokens": 32, "stream": true}'

What happens to a request:

1. `launch.serving.server.load` has read the weights into the mesh, sized the cache and compiled the
   programs; its `Runner` runs one step, which is a bucket's program and a draw of tokens.
2. A thread of the HTTP server reads a body, turns the text into tokens, and submits a `Request`.
3. The thread of the `Engine` takes it in before its next step. The `Scheduler`, which knows nothing
   of JAX, plans steps: a piece of some prompts, or one more token for everybody who has a slot.
4. `deliver` gets what each step brought, and puts it into the queue of its request; the thread of
   step 2 turns tokens into text as they come.
"""

import json
import queue
import secrets
import uuid
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from absl import flags

from launch.errors import LaunchError
from launch.program import run, say
from launch.program_cache import keep_programs
from launch.serving.engine import Engine
from launch.serving.errors import RequestError
from launch.serving.model_choice import define_model_flags, model_choice_of_flags
from launch.serving.requests import Output, Request, SamplingParameters
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.server import load
from launch.text import Tokenizer

PATH = "/v1/completions"
MOST_BODY_BYTES = 1 << 20

_PORT = flags.DEFINE_integer("port", 8001, "Port to listen on, on this machine alone.")
flags.disclaim_key_flags()


class Answers:
    """The outputs that an engine delivers, in a queue for each request."""

    def __init__(self) -> None:
        self._queues: dict[str, queue.SimpleQueue[Output]] = {}

    def deliver(self, outputs: Sequence[Output]) -> None:
        """Queues outputs for their requests, in the thread of the engine, which must not wait."""
        for output in outputs:
            if (waiting := self._queues.get(output.id)) is not None:
                waiting.put(output)

    def follow(self, engine: Engine, request: Request) -> Iterator[Output]:
        """Submits a request, and gives its outputs as they come; who leaves early cancels it.
        Raises LaunchError if it cannot be answered."""
        waiting = self._queues[request.id] = queue.SimpleQueue()
        try:
            engine.submit(request)
            output = None
            while output is None or output.finished is None:
                yield (output := waiting.get())
                if output.finished == "error":
                    raise LaunchError(output.error)
        finally:
            del self._queues[request.id]
            engine.cancel(request.id)  # nothing happens if it is over


class Server(ThreadingHTTPServer):
    """An HTTP server of one model, with a thread for each connection."""

    def __init__(
        self,
        port: int,
        engine: Engine,
        answers: Answers,
        tokenizer: Tokenizer,
        stop_tokens: Sequence[int],
    ) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.engine, self.answers, self.tokenizer = engine, answers, tokenizer
        self.stop_tokens = frozenset(stop_tokens)

    def read(self, body: Any) -> Request:
        """Raises RequestError for a body that asks for nothing."""
        if not isinstance(body, dict) or not isinstance(body.get("prompt"), str):
            raise RequestError("prompt must be a string", "prompt")
        numbers = {name: body[name] for name in ("temperature", "top_p", "top_k") if name in body}
        length = body.get("max_tokens", 16)
        if not all(type(value) in (int, float) for value in (length, *numbers.values())):
            raise RequestError(f"max_tokens, {', '.join(numbers)} must be numbers", "max_tokens")
        return Request(
            uuid.uuid4().hex,
            self.tokenizer.encode(body["prompt"], marks=True).tolist(),
            int(length),
            SamplingParameters(**numbers, seed=secrets.randbits(62)),
            self.stop_tokens,
            client="everybody",
        )

    def pieces(self, request: Request) -> Iterator[tuple[str, str | None]]:
        """The text of an answer piece by piece, and why it has ended."""
        text = self.tokenizer.stream()
        for output in self.answers.follow(self.engine, request):
            new = text.feed(token for token in output.tokens if token not in self.stop_tokens)
            yield new + (text.finish() if output.finished else ""), output.finished


class Handler(BaseHTTPRequestHandler):
    """The handler of one connection."""

    server: Server

    def do_POST(self) -> None:
        """Answers a body whole, or as server-sent events."""
        length = int(self.headers.get("Content-Length") or 0)
        if self.path != PATH or not 0 < length <= MOST_BODY_BYTES:
            self._send(404, {"error": {"message": f"POST a body to {PATH}"}})
            return
        try:
            body = json.loads(self.rfile.read(length))
            request = self.server.read(body)
            self.server.engine.check(request)
            pieces = self.server.pieces(request)
            if body.get("stream"):
                self._stream(request, pieces)
                return
            texts, reasons = zip(*pieces, strict=True)
            self._send(200, _told(request, "".join(texts), reasons[-1]))
        except (ValueError, LaunchError) as error:
            self._send(400, {"error": {"message": str(error)}})

    def _stream(self, request: Request, pieces: Iterator[tuple[str, str | None]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for text, reason in pieces:
            event = json.dumps(_told(request, text, reason))
            self.wfile.write(f"data: {event}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, status: int, told: Any) -> None:
        data = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing of requests."""


def _told(request: Request, text: str, reason: str | None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "finish_reason": reason, "logprobs": None}
    return {"id": f"cmpl-{request.id}", "object": "text_completion", "choices": [choice]}


def make_server(
    runner: Any,
    limits: SchedulerLimits,
    tokenizer: Tokenizer,
    stop_tokens: Sequence[int],
    port: int,
) -> Server:
    """A server whose engine is at work; `serve_forever` answers."""
    answers = Answers()
    engine = Engine(runner, limits, answers.deliver)
    return Server(port, engine, answers, tokenizer, stop_tokens)


def main() -> int:
    choice = model_choice_of_flags()
    keep_programs(choice.engine.compilation_cache_dir)
    loaded = load(choice.checkpoint_dir, choice.model, choice.mesh, choice.engine)
    writer, runner = loaded.writer, loaded.runners[0]
    ending = writer.generation.ending.stop_tokens
    with make_server(runner, loaded.limits, writer.tokenizer, ending, _PORT.value) as server:
        say(f"http://127.0.0.1:{server.server_port}{PATH}; Ctrl-C ends it")
        try:
            server.serve_forever()
        finally:
            server.engine.close()
    return 0


if __name__ == "__main__":
    define_model_flags()
    run(main)
