"""A language model behind an engine, from its files on."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from launch.chat_template import BUNDLED, ChatTemplate, read_chat_template
from launch.generator import Writer, load_directory, load_run
from launch.loading import progress
from launch.meshes import parse_mesh
from launch.program import say
from launch.serving.adapters.host import AdapterHost
from launch.serving.adapters.registry import Registry
from launch.serving.adapters.stacks import ReadAdapter, Stacks
from launch.serving.asked import Asked
from launch.serving.config import EngineConfig, ModelNames
from launch.serving.engine import Engine
from launch.serving.errors import ServingError
from launch.serving.grammar import Grammars
from launch.serving.http.context import Served
from launch.serving.http.generation import generation_site
from launch.serving.http.metrics import Metrics
from launch.serving.http.site import Site
from launch.serving.runner.runner import Runner
from launch.serving.runner.sizes import block_bytes, cache_dtype, choose_limits
from launch.serving.scheduler.scheduler import SchedulerLimits
from launch.serving.service import Dispatcher, Service
from launch.serving.speculation.make import make_proposer


class Loaded(NamedTuple):
    """A model that is ready to run."""

    writer: Writer
    stacks: Stacks | None  # room for adapters, if there is any
    adapters: Mapping[str, ReadAdapter]  # those that the command line names
    runner: Runner
    limits: SchedulerLimits
    files: Path  # directory with the tokenizer and the chat template, if there are any


def load(checkpoint_dir: Path, model: Path | None, mesh_text: str, config: EngineConfig) -> Loaded:
    """The model of a run, or of a Hugging Face directory, with what it needs to answer compiled.

    Raises LaunchError or ModelsError for what does not suit.
    """
    modules, adapters = config.adapters(), {}
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
    dtype = cache_dtype(config, writer.model.parameters)
    limits = choose_limits(config, description, mesh, dtype)
    heads_split = mesh.shape.get("model", 1)
    _say_limits(limits, block_bytes(description, limits.block_size, heads_split, dtype))
    served, stacks = writer.model, None
    if config.enable_lora or config.lora_modules:
        stacks = Stacks.of(served, config.max_loras, config.max_lora_rank)
        served = stacks.with_room(served, mesh)
        adapters = {name: ReadAdapter(path, stacks.read(path)) for name, path in modules.items()}
    runner = Runner(
        served.graph,
        served.parameters,
        mesh,
        limits,
        vocab_size=description.vocab_size,
        cache_dtype=dtype,
        proposer=make_proposer(config, writer, mesh_text, limits),
    )
    programs = runner.programs
    keys = programs.first_keys if config.warm_up == "needed" else programs.keys
    with progress("programs", total=len(keys)) as bar:
        runner.warm_up(keys, lambda key: bar.update())
    return Loaded(
        writer, stacks, adapters, runner, limits, checkpoint_dir if model is None else model
    )


@contextmanager
def engine_of(loaded: Loaded, config: EngineConfig, names: ModelNames) -> Iterator[Served]:
    """The model behind an engine that runs until the end of the block."""
    dispatcher = Dispatcher()
    writer, vocab_size = loaded.writer, loaded.writer.model.config.vocab_size
    name = names.served_model_name or loaded.files.absolute().name
    stop_tokens = writer.ending.stop_tokens
    template, grammars = (
        _template(loaded.files, names.chat_template),
        Grammars(loaded.files, vocab_size, stop_tokens),
    )
    with Engine(
        loaded.runner,
        loaded.limits,
        dispatcher.deliver,
        max_waiting=config.max_num_waiting,
        steps_ahead=1 if config.async_scheduling else 0,
    ) as engine:
        registry = Registry(config.max_loras, name)
        host = None
        if loaded.stacks is not None:
            host = AdapterHost(loaded.stacks, registry, engine, loaded.runner)
            host.load_first(loaded.adapters)
        yield Served(
            name=name,
            service=Service(engine, dispatcher, writer.tokenizer, registry),
            metrics=Metrics(engine, name),
            template=template,
            grammars=grammars,
            vocab_size=vocab_size,
            stop_tokens=stop_tokens,
            created=int(time.time()),
            adapters=host,
        )


@contextmanager
def language_model(asked: Asked) -> Iterator[Site]:
    """A language model behind an engine; other programs are compiled meanwhile."""
    loaded = load(asked.checkpoint_dir, asked.model, asked.mesh, asked.engine)
    programs = loaded.runner.programs
    left = [key for key in programs.keys if not programs.compiled.is_ready(key)]
    if left:
        say(f"{len(left)} more programs are compiled while the first answers are made")
    with (
        programs.compiled.beside(left, lambda: say("programs: all are compiled")),
        engine_of(loaded, asked.engine, asked.names) as served,
    ):
        yield generation_site(served)


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
