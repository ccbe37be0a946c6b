"""What cannot go together is refused before anything is compiled."""

import math

import jax
from flax import nnx
from jax.sharding import AbstractMesh, Mesh

from launch.errors import MeshError, ModelError
from launch.meshes import batch_sharding
from launch.training.gradients import rows_of
from launch.training.kernels import COMPILER
from launch.training.objectives import Batch
from launch.training.parallelism import Parallelism
from models.errors import ShardingError
from models.layers.attention import Attention
from models.layers.moe import MoE
from models.parallel.context import ContextParallel
from models.pretrained import Described
from models.sharding import TENSOR_AXES


def check_combination(
    model: Described,
    module: nnx.Module,
    parallelism: Parallelism,
    mesh: Mesh | AbstractMesh,
    batch: Batch,
    kernels: str = COMPILER,
) -> None:
    """Raises MeshError if rows or positions cannot be shared equally, or if a model cannot be
    shared in these ways, ModelError if no kernel computes its layers."""
    _check_pipeline(parallelism)
    _check_experts(model, module, mesh)
    if kernels != COMPILER:
        _check_kernels(model, module, mesh, kernels)
    batch_sharding(mesh, rows_of(batch))
    _check_rows(parallelism, mesh, rows_of(batch))
    if model.architecture.sharing is not None:
        _check_stream(parallelism, batch)
    size = mesh.shape.get("context", 1)
    if size == 1:
        return
    if not hasattr(module, "context"):
        raise MeshError(
            f"context={size} splits the positions of a text, which {model.architecture.name} does "
            "not support. Use a mesh without context."
        )
    for _, layer in nnx.iter_modules(module):
        if isinstance(layer, Attention) and layer.dropout is not None:
            raise MeshError(
                f"context={size} does not support --attention_dropout. Leave it out, or use a mesh "
                "without context; --hidden_dropout is supported."
            )
        if isinstance(layer, MoE) and layer.experts.capacity_factor is not None:
            raise MeshError(
                f"context={size}: experts with capacity_factor="
                f"{layer.experts.capacity_factor} count the tokens of whole rows. Use a mesh "
                "without context, or experts without a capacity."
            )
    heads = model.config.num_heads // parallelism.tensor_parallel_size
    if parallelism.context_parallel_method == "all_to_all" and heads % size:
        raise MeshError(
            f"context={size} does not divide the {heads} query heads of a core, as all_to_all "
            "needs. Choose a size that does, or --context_parallel_method=ring."
        )
    context = ContextParallel(size, parallelism.context_parallel_method)
    try:
        for array in jax.tree.leaves(batch):
            context.order(array.shape[1])
    except ShardingError as error:
        raise MeshError(f"{error} The positions are the training window, --seq_len.") from error


def _check_pipeline(parallelism: Parallelism) -> None:
    """Raises MeshError for settings of a pipeline on a mesh that has none. The number of
    micro-batches is allowed: presets set it, and users may give another mesh than theirs."""
    if parallelism.pipeline_parallel_size > 1:
        return
    chunks, cuts = parallelism.virtual_pipeline_parallel_size, parallelism.pipeline_cuts
    given = [f"--virtual_pipeline_parallel_size={chunks}"] if chunks > 1 else []
    given += [] if cuts is None else [f"--pipeline_cuts={cuts}"]
    if given:
        raise MeshError(
            f"{' and '.join(given)} is for pipelines, but this mesh has no stages. Give a "
            "--pipeline_parallel_size, or leave it out."
        )


def _check_experts(model: Described, module: nnx.Module, mesh: Mesh | AbstractMesh) -> None:
    """Raises MeshError if cores are to share experts that there are not."""
    size = mesh.shape.get("expert", 1)
    if size > 1 and not any(isinstance(layer, MoE) for _, layer in nnx.iter_modules(module)):
        raise MeshError(
            f"expert={size} shares experts, but {model.architecture.name} with this config has "
            "none. Use data or fsdp instead of expert."
        )


def _check_kernels(
    model: Described, module: nnx.Module, mesh: Mesh | AbstractMesh, kernels: str
) -> None:
    """Raises ModelError for what no kernel computes, MeshError where cores share what one has to
    see whole."""
    if any(isinstance(m, Attention) and m.dropout for _, m in nnx.iter_modules(module)):
        raise ModelError(
            f"--kernels={kernels} has no attention with --attention_dropout. Leave one of them out."
        )
    if mesh.shape.get("context", 1) > 1:
        raise MeshError(
            f"--kernels={kernels}: attention that context={mesh.shape['context']} shares among "
            "cores has no kernel. Use a mesh without context, or --kernels=compiler."
        )
    axes = [axis for axis in TENSOR_AXES if mesh.shape.get(axis, 1) > 1]
    if axes and model.architecture.sharing is None:
        raise MeshError(
            f"--kernels={kernels}: XLA's partitioner shares {model.architecture.name} along "
            f"{', '.join(axes)}, and it cannot divide a kernel. Use a mesh without {axes[0]}, or "
            "--kernels=compiler."
        )


def _check_stream(parallelism: Parallelism, batch: Batch) -> None:
    cores = parallelism.tensor_parallel_size * parallelism.context_parallel_size
    texts = (array.shape[1] for array in jax.tree.leaves(batch) if array.ndim == 2)
    length = next(texts, None)
    if parallelism.sequence_parallel and length is not None and length % cores:
        raise MeshError(
            f"sequence parallelism cannot split {length} positions, the training window, over "
            f"{cores} cores. Choose another --seq_len, or --nosequence_parallel."
        )


def _check_rows(parallelism: Parallelism, mesh: Mesh | AbstractMesh, rows: int) -> None:
    cores = 1
    for axis in ("data", "fsdp", "expert"):
        cores *= mesh.shape.get(axis, 1)
    stages = parallelism.pipeline_parallel_size
    parts = {"--gradient_accumulation_steps": parallelism.gradient_accumulation_steps}
    if stages > 1:
        micro_batches = parallelism.pipeline_parallel_num_microbatches or 2 * stages
        parts["--pipeline_parallel_num_microbatches"] = micro_batches
    of_core, least = rows // cores, math.prod(parts.values())
    if of_core % least:
        counts = [f"{name}={count}" for name, count in parts.items() if count > 1]
        raise MeshError(
            f"the {of_core} rows of a core cannot be split into the micro-batches of "
            f"{' and '.join(counts)}. Choose a --batch_size that is a multiple of {least * cores}, "
            "or fewer micro-batches."
        )
