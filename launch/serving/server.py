"""A model behind an engine, from its files to the server."""

import time
from pathlib import Path
from typing import NamedTuple

import jax
from tqdm import tqdm

from launch.chat_template import BUNDLED, ChatTemplate, read_chat_template
from launch.generator import Writer, load_directory, load_run
from launch.meshes import parse_mesh
from launch.program import say
from launch.serving.config import EngineConfig, ServerConfig
from launch.serving.engine import Deliver, Engine
from launch.serving.errors import ServingError
from launch.serving.grammar import Grammars
from launch.serving.http.app import make_app
from launch.serving.http.context import Served
from launch.serving.http.metrics import Metrics
from launch.serving.http.server import Server, bind, run
from launch.serving.runner.runner import Runner
from launch.serving.runner.sizes import block_bytes, choose_limits
from launch.serving.scheduler.scheduler import SchedulerLimits
from launch.serving.service import Dispatcher, Service


class Loaded(NamedTuple):
    """A model that is ready to run."""

    writer: Writer
    runner: Runner
    limits: SchedulerLimits
    files: Path  # directory with the tokenizer and the chat template, if there are any


def load(checkpoint_dir: Path, model: Path | None, mesh_text: str, config: EngineConfig) -> Loaded:
    """The model of a run, or of a Hugging Face directory, with everything compiled.

    Raises LaunchError or ModelsError for what does not suit.
    """
    others = [axis for axis, size in parse_mesh(mesh_text).items() if size > 1 and axis != "model"]
    if others:
        raise ServingError(
            f"--mesh={mesh_text} splits {', '.join(others)}; one server splits the model alone. "
            "Start a server for each part of the data."
        )
    writer = (
        load_run(checkpoint_dir, mesh_text) if model is None else load_directory(model, mesh_text)
    )
    description = writer.model.config
    mesh = next(iter(writer.model.parameters.values())).sharding.mesh
    limits = choose_limits(config, description, mesh)
    _say_limits(limits, block_bytes(description, limits.block_size, mesh.shape.get("model", 1)))
    runner = Runner(
        writer.model.graph,
        writer.model.parameters,
        mesh,
        limits,
        vocab_size=description.vocab_size,
    )
    keys = runner.programs.keys
    with tqdm(total=len(keys), desc="programs", dynamic_ncols=True) as bar:
        runner.warm_up(lambda key: bar.update())
    return Loaded(writer, runner, limits, checkpoint_dir if model is None else model)


def make_engine(loaded: Loaded, deliver: Deliver, config: EngineConfig) -> Engine:
    """The engine of a loaded model."""
    return Engine(
        loaded.runner,
        loaded.limits,
        deliver,
        max_waiting=config.max_num_waiting,
        steps_ahead=1 if config.async_scheduling else 0,
    )


def serve(loaded: Loaded, engine_config: EngineConfig, config: ServerConfig) -> int:
    """Serves until a signal ends it; the exit code."""
    listener = bind(config.host, config.port)
    dispatcher = Dispatcher()
    writer = loaded.writer
    name = config.served_model_name or loaded.files.absolute().name
    stop_tokens = writer.ending.stop_tokens
    with make_engine(loaded, dispatcher.deliver, engine_config) as engine:
        service = Service(engine, dispatcher, writer.tokenizer)
        served = Served(
            name=name,
            service=service,
            metrics=Metrics(engine, name),
            template=_template(loaded.files, config.chat_template),
            grammars=Grammars(loaded.files, writer.model.config.vocab_size, stop_tokens),
            vocab_size=writer.model.config.vocab_size,
            stop_tokens=stop_tokens,
            created=int(time.time()),
        )
        server = Server(make_app(served, config), service, dispatcher, grace=config.grace_period)
        host, port = listener.getsockname()[:2]
        say(f"{name} at http://{host}:{port}/v1 on {jax.default_backend()}; Ctrl-C ends it")
        run(server, listener)
    return 0


def _template(directory: Path, choice: str | None) -> ChatTemplate:
    """The model's own, or one for models that have none."""
    return read_chat_template(directory, choice) or ChatTemplate(
        BUNDLED["chatml"], "models without one", {}
    )


def _say_limits(limits: SchedulerLimits, bytes_per_block: int) -> None:
    buckets = limits.buckets
    say(
        f"cache: {limits.blocks} blocks of {limits.block_size} tokens, "
        f"{limits.blocks * bytes_per_block / 2**20:.1f} MiB on each device; texts of up to "
        f"{limits.longest} tokens, {limits.slots} at once"
    )
    say(
        f"buckets: decode {list(buckets.decode_rows)} rows; prefill {list(buckets.prefill_rows)} "
        f"rows of {list(buckets.prefill_tokens)} tokens; contexts of "
        f"{[blocks * limits.block_size for blocks in buckets.blocks]} tokens"
    )
