"""A language model behind an engine, from its files on."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from launch.generator import Writer, load_directory, load_run
from launch.images_in_text import ImageReading
from launch.loading import looped
from launch.program import say
from launch.progress import progress
from launch.serving.adapters.host import AdapterHost
from launch.serving.adapters.stacks import Stacks
from launch.serving.answering import Answering, Deliver
from launch.serving.backend import Backend
from launch.serving.config import EngineConfig, ModelNames, split_names
from launch.serving.copies import (
    cache_split,
    check_copies,
    copies,
    split_mesh,
    with_split_cache,
)
from launch.serving.desk import EngineDesk
from launch.serving.disaggregated import Disaggregated
from launch.serving.engine import Engine
from launch.serving.grammar import Grammars
from launch.serving.http.generation import LanguageModel
from launch.serving.model_choice import ModelChoice
from launch.serving.replicas import Replicas
from launch.serving.runner.meter import seconds_of
from launch.serving.runner.runner import Runner
from launch.serving.runner.sizes import block_bytes, cache_dtype, choose_limits, layer_groups
from launch.serving.runner.transfer import Transfer
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.speculation.config import read_speculative_config
from launch.serving.speculation.make import make_proposer


class Loaded(NamedTuple):
    """A model that is ready to run."""

    writer: Writer
    stacks: Stacks | None  # room for adapters, if there is any
    runners: list[Runner]  # one for each copy of the model
    limits: SchedulerLimits
    files: Path  # directory with the tokenizer and the chat template, if there are any
    opening: Sequence[int] = ()  # of every answer, if an encoder reads the prompts
    reading: ImageReading | None = None  # of images in conversations


def load(checkpoint_dir: Path, model: Path | None, mesh_text: str, config: EngineConfig) -> Loaded:
    """The model of a run, or of a Hugging Face directory, with what it needs to answer compiled.

    Raises LaunchError or ModelsError for what does not suit.
    """
    modules = config.adapters()
    mesh_text, count = split_mesh(mesh_text)
    mesh_text = with_split_cache(mesh_text, config)
    config.check_loop()
    check_copies(config, count, read_speculative_config(config.speculative_config))
    writer = (
        load_run(checkpoint_dir, mesh_text)
        if model is None
        else load_directory(model, mesh_text, pad=True)
    )
    if config.scan_layers:
        writer = writer._replace(model=looped(writer.model))
    description = writer.model.config
    mesh = next(iter(writer.model.parameters.values())).sharding.mesh
    dtype = cache_dtype(config, writer.model.parameters)
    limits = choose_limits(config, description, mesh, dtype)
    say_limits(limits, block_bytes(config, description, mesh, dtype))
    served, stacks = writer.model, None
    if config.enable_lora or config.lora_modules:
        stacks = Stacks.of(served, config.max_loras, config.max_lora_rank)
        served = stacks.with_room(served, mesh)
        for path in modules.values():
            stacks.read(path)  # raises if it cannot be used
    runners = [
        Runner(
            served.graph,
            parameters,
            own_mesh,
            limits,
            vocab_size=description.vocab_size,
            cache_dtype=dtype,
            proposer=make_proposer(config, writer, mesh_text, limits),
            cache_split=cache_split(own_mesh),
            cache_groups=layer_groups(config, description),
            timed=config.clock == "device",
        )
        for own_mesh, parameters in copies(served.parameters, count)
    ]
    warm_up(runners, config)
    files = checkpoint_dir if model is None else model
    return Loaded(writer, stacks, runners, limits, files)


def warm_up(runners: Sequence[Runner], config: EngineConfig) -> None:
    """Compiles what is needed before the first request. Raises ServingError if steps are to be
    timed on a platform that does not simulate them."""
    programs = runners[0].programs
    keys = programs.first_keys if config.warm_up == "needed" else programs.keys
    with progress("programs", total=len(keys) * len(runners)) as bar:
        for runner in runners:
            runner.warm_up(keys, lambda key: bar.update())
    if config.clock == "device":
        seconds_of(keys[0], programs.get(keys[0]))


@contextmanager
def engine_of(loaded: Loaded, config: EngineConfig, names: ModelNames) -> Iterator[Backend]:
    """The model behind an engine that runs until the end of the block."""
    writer, vocab_size = loaded.writer, loaded.writer.model.config.vocab_size
    stop_tokens = writer.generation.ending.stop_tokens
    recipe = LanguageModel(
        name=names.served_model_name or loaded.files.absolute().name,
        files=loaded.files,
        chat_template=names.chat_template,
        vocab_size=vocab_size,
        stop_tokens=stop_tokens,
        limits=loaded.limits,
        created=int(time.time()),
        has_adapters=loaded.stacks is not None,
        adapters=config.adapters(),
        adapter_folders=[Path(name) for name in split_names("lora_folders", config.lora_folders)],
        opening=loaded.opening,
        reading=loaded.reading,
        max_images=config.max_images,
        tokens_per_minute=config.max_tokens_per_minute,
        tool_call_parser=names.tool_call_parser,
        reasoning_parser=names.reasoning_parser,
    )
    grammars = Grammars(loaded.files, vocab_size, stop_tokens)
    make = partial(make_engine, loaded.runners, loaded.limits, config)
    interval = config.delivery_interval
    adapters = _adapters_of(loaded, config)
    with EngineDesk(make, grammars, adapters, delivery_interval=interval) as desk:
        yield Backend(recipe, desk)


@contextmanager
def language_model(choice: ModelChoice) -> Iterator[Backend]:
    """A language model behind an engine."""
    loaded = load(choice.checkpoint_dir, choice.model, choice.mesh, choice.engine)
    with served(loaded, choice) as backend:
        yield backend


@contextmanager
def served(loaded: Loaded, choice: ModelChoice) -> Iterator[Backend]:
    """A model that is loaded, behind an engine; other programs are compiled meanwhile."""
    with (
        others_compiled(loaded.runners, choice.engine),
        engine_of(loaded, choice.engine, choice.names) as backend,
    ):
        yield backend


@contextmanager
def others_compiled(runners: Sequence[Runner], config: EngineConfig) -> Iterator[None]:
    """Compiles what no answer waits for, until the end of the block at most."""
    with ExitStack() as stack:
        for runner in runners:
            programs = runner.programs
            left = [key for key in programs.keys if not programs.compiled.is_ready(key)]
            if config.clock == "device":
                left = []  # no other program may stand in: each is compiled when it is needed
            if left:
                say(f"{len(left)} more programs are compiled while the first answers are made")
            beside = programs.compiled.beside(left, lambda: say("programs: all are compiled"))
            stack.enter_context(beside)
        yield


def make_engine(
    runners: Sequence[Runner], limits: SchedulerLimits, config: EngineConfig, deliver: Deliver
) -> Engine | Replicas | Disaggregated:
    """An engine of the runners, or several engines behind the interface of one."""
    ahead = 1 if config.async_scheduling else 0
    waiting = config.max_num_waiting
    if config.disaggregated_prefill:
        first, second = runners
        return Disaggregated(
            first,
            second,
            limits,
            deliver,
            max_waiting=waiting,
            steps_ahead=ahead,
            moving=None
            if config.clock == "host"
            else Transfer(first.pages, second.pages, limits.buckets.blocks).seconds,
        )
    if len(runners) > 1:
        return Replicas(runners, limits, deliver, max_waiting=waiting, steps_ahead=ahead)
    return Engine(runners[0], limits, deliver, max_waiting=waiting, steps_ahead=ahead)


def _adapters_of(loaded: Loaded, config: EngineConfig) -> Callable[[Answering], AdapterHost] | None:
    """Makes what loads adapters into an engine, if there is room for any."""
    if loaded.stacks is None:
        return None
    return partial(
        AdapterHost,
        loaded.stacks,
        loaded.runners[0],
        places=config.max_loras,
        in_memory=config.max_cpu_loras,
    )


def say_limits(limits: SchedulerLimits, bytes_per_block: int) -> None:
    """Tells what there is room for."""
    buckets = limits.buckets
    say(
        f"cache: {limits.blocks} blocks of {limits.block_size} tokens"
        f"{f' for {limits.groups} groups' if limits.groups > 1 else ''}"
        f"{f', {len(limits.windows)} tables of layers' if len(limits.windows) > 1 else ''}, "
        f"{limits.blocks_of_group * bytes_per_block / 2**20:.1f} MiB on each device; "
        f"texts of up to {limits.longest} tokens, {limits.slots} at once"
    )
    say(
        f"buckets: decode {list(buckets.decode_rows)} rows; prefill {list(buckets.prefill_rows)} "
        f"rows of {list(buckets.prefill_tokens)} tokens; contexts of "
        f"{[blocks * limits.block_size for blocks in buckets.blocks]} tokens"
    )
