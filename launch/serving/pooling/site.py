"""A model of whole texts, from its files on."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from launch.chat_template import reads_token_types
from launch.generator import load_run
from launch.loading import load_with_progress, looped
from launch.meshes import make_mesh, parse_mesh
from launch.pooling.heads import TaskHead, task_head
from launch.pooling.runner import PoolingRunner
from launch.pooling.text import Text
from launch.program import say
from launch.progress import progress
from launch.serving.backend import Backend
from launch.serving.batcher import Batcher
from launch.serving.desk import BatchDesk
from launch.serving.http.pooling import PoolingModel
from launch.serving.model_choice import ModelChoice
from launch.serving.pooling.buckets import choose_text_buckets
from launch.tasks.media_reader import labels_of
from models.pretrained import Pretrained
from models.sentences.config import (
    SentenceConfig,
    read_sentence_config,
    transformer_folder,
    with_pooling,
)
from models.sentences.model import load_head

LONGEST = 2048  # tokens of a text, unless a longer one is asked for


@contextmanager
def pooled_model(choice: ModelChoice) -> Iterator[Backend]:
    """Vectors or classes of texts, with everything compiled."""
    model = _load(choice)
    head = task_head(model)
    settings = _settings(choice, head)
    context = min(model.config.max_seq_len, settings.longest or model.config.max_seq_len)
    engine = choice.engine
    if engine.max_model_len is None:
        engine = replace(engine, max_model_len=min(context, LONGEST))
    buckets = choose_text_buckets(engine, context)
    mesh = next(iter(model.parameters.values())).sharding.mesh
    say(
        f"buckets: {list(buckets.rows)} rows of {list(buckets.tokens)} tokens, "
        f"{buckets.batched_tokens} tokens at most"
    )
    sentence = load_head(choice.files, settings.modules, model.config.param_dtype, mesh)
    has_types = reads_token_types(choice.files, model.config)
    runner = PoolingRunner(model, mesh, buckets, head, sentence, has_types=has_types)
    with progress("programs", total=len(list(buckets))) as bar:
        runner.warm_up(lambda shape: bar.update())
    width = _width(runner)
    with Batcher[Text, np.ndarray](runner, max_waiting=engine.max_num_waiting) as batcher:
        recipe = PoolingModel(
            name=choice.name,
            files=transformer_folder(choice.files),
            vocab_size=model.config.vocab_size,
            longest=buckets.longest,
            width=width,
            created=int(time.time()),
            labels=tuple(labels_of(model, width)) if head.classifies else (),
            lower=settings.lower,
            independent=model.fields.text("problem_type", "") == "multi_label_classification",
        )
        yield Backend(recipe, BatchDesk(batcher))


def _load(choice: ModelChoice) -> Pretrained:
    if choice.model is None:
        model = load_run(choice.checkpoint_dir, choice.mesh).model
    else:
        mesh = make_mesh(parse_mesh(choice.mesh))
        say(f"{choice.model} on mesh {dict(mesh.shape)}")
        model = load_with_progress(choice.model, mesh, pad=True)
    return looped(model) if choice.engine.scan_layers else model


def _settings(choice: ModelChoice, head: TaskHead) -> SentenceConfig:
    settings = read_sentence_config(choice.files, head.pooling)
    pooling = choice.names.pooling
    return settings if pooling is None else with_pooling(settings, pooling)


def _width(runner: PoolingRunner) -> int:
    """The width of what the model makes of a text."""
    return int(runner.compute([Text([0], [0])])[0].shape[0])
