"""Low-rank adapters: what they compute, what they leave alone, and their files."""

import json
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import SingleDeviceSharding
from safetensors.numpy import load_file, save_file

from launch.errors import ModelError
from launch.finetuning.adapter_files import load_adapter, save_adapter
from launch.finetuning.lora import Adapted, LoRA, adapt, merged
from launch.finetuning.starting import random_parameters
from launch.training.objectives import next_tokens
from launch.training.parallelism import Parallelism
from launch.training.precision import PRECISIONS
from launch.training.state import TrainState
from launch.training.step import Training, make_training
from models.errors import ConfigError
from models.layers.low_rank import switch_adapters
from models.parallel.depth import stack
from models.parameters import Parameters, merge
from models.pretrained import Described, Pretrained
from tests.models.parity.media_cases import VISION
from tests.models.parity.text_cases import FAMILIES, LABELS, T5
from tests.models.tiny import random_model
from tests.quick_compile import QUICK_COMPILE

LLAMA = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}
TEXT = np.random.default_rng(3).integers(3, 64, (4, 9)).astype(np.int32)
TOKENS = {"tokens": TEXT}
CASES: dict[str, tuple[dict[str, Any], str, dict[str, np.ndarray]]] = {
    "LlamaForCausalLM": (LLAMA, "q_proj,down_proj", TOKENS),
    "Phi3ForCausalLM": (LLAMA | {"pad_token_id": 0}, "qkv_proj,gate_up_proj,o_proj", TOKENS),
    "BertForSequenceClassification": (FAMILIES["Bert"] | LABELS, "query,value", TOKENS),
    "ModernBertForTokenClassification": (FAMILIES["ModernBert"] | LABELS, "all-linear", TOKENS),
    "T5ForConditionalGeneration": (T5, "q,v,wo", TOKENS | {"source": TEXT[:, ::-1]}),
    "ViTForImageClassification": (
        VISION,
        "all-linear",
        {"pixels": np.random.default_rng(4).normal(size=(4, 24, 24, 3)).astype(np.float32)},
    ),
}


def described(model: Pretrained) -> Described:
    return Described(*model[:3])


@cache
def base_of(name: str) -> Pretrained:
    return random_model({**CASES[name][0], "architectures": [name]})


def with_random_adapters(name: str, **settings: Any) -> tuple[Adapted, Parameters]:
    """The model of a case, its adapters as if they had learnt something."""
    base = base_of(name)
    adapted = adapt(described(base), LoRA(rank=3, targets=CASES[name][1], **settings))
    rng = np.random.default_rng(1)
    parameters = {
        path: base.parameters[path]
        if path in base.parameters
        else jnp.asarray(0.2 * rng.normal(size=leaf.shape), leaf.dtype)
        for path, leaf in adapted.parameters().items()
    }
    return adapted, parameters


@partial(jax.jit, static_argnums=0, compiler_options=QUICK_COMPILE)
def run(graph: nnx.GraphDef, parameters: Parameters, inputs: dict[str, np.ndarray]) -> Any:
    return merge(graph, parameters)(**inputs)


def outputs(model: Described, parameters: Parameters, inputs: dict[str, np.ndarray]) -> Any:
    return run(model.architecture.abstract(model.config)[0], parameters, inputs)


@pytest.mark.parametrize("name", CASES)
def test_merged_model_is_adapter_model(name: str) -> None:
    adapted, parameters = with_random_adapters(name)
    inputs = CASES[name][2]
    got = outputs(adapted.model, parameters, inputs)
    together = merged(adapted, parameters)
    assert together.keys() == base_of(name).parameters.keys()
    expected = outputs(adapted.base, together, inputs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4), got, expected)
    before = outputs(adapted.base, base_of(name).parameters, inputs)
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), before, got)
    assert min(jax.tree.leaves(moved)) > 0.01


@pytest.mark.parametrize("name", CASES)
def test_files_give_the_adapter_back(name: str, tmp_path: Path) -> None:
    adapted, parameters = with_random_adapters(name, rslora=name.startswith("Phi"))
    save_adapter(tmp_path, adapted, parameters, base="some/base")
    again, loaded = load_adapter(tmp_path, adapted.base)
    assert loaded.keys() == adapted.trained()
    for path, value in loaded.items():
        np.testing.assert_array_equal(value, parameters[path], err_msg=path)
    assert [a.layer for a in again.adapters] == [a.layer for a in adapted.adapters]
    for one, other in zip(again.adapters, adapted.adapters, strict=True):
        assert one.rank == other.rank
        assert one.scale == pytest.approx(other.scale)


def test_files_have_the_layout_of_peft(tmp_path: Path) -> None:
    """As `peft` 0.21 writes it for the same targets, by its documentation of the format."""
    adapted, parameters = with_random_adapters("LlamaForCausalLM", alpha=12.0)
    save_adapter(tmp_path, adapted, parameters, base="some/base")
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    expected = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "some/base",
        "auto_mapping": {
            "base_model_class": "LlamaForCausalLM",
            "parent_library": "transformers",
        },
        "r": 3,
        "lora_alpha": 12.0,
        "target_modules": ["down_proj", "q_proj"],
        "modules_to_save": None,
        "use_rslora": False,
        "bias": "none",
    }
    assert expected.items() <= config.items()
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    shapes = {
        f"base_model.model.model.layers.{i}.{layer}.lora_{part}.weight": shape
        for i in range(2)
        for layer, part, shape in (
            ("self_attn.q_proj", "A", (3, 32)),
            ("self_attn.q_proj", "B", (32, 3)),
            ("mlp.down_proj", "A", (3, 48)),
            ("mlp.down_proj", "B", (32, 3)),
        )
    }
    assert {name: tensor.shape for name, tensor in tensors.items()} == shapes
    name = "base_model.model.model.layers.1.self_attn.q_proj.lora"
    product = 12 / 3 * tensors[f"{name}_B.weight"] @ tensors[f"{name}_A.weight"]
    kernel = base_of("LlamaForCausalLM").parameters["blocks.1.attention.query.kernel"]
    together = merged(adapted, parameters)["blocks.1.attention.query.kernel"]
    np.testing.assert_allclose(product.T, (together - kernel).reshape(32, 32), rtol=1e-4, atol=1e-5)


def test_the_classifier_is_saved_whole(tmp_path: Path) -> None:
    adapted, parameters = with_random_adapters("BertForSequenceClassification")
    save_adapter(tmp_path, adapted, parameters)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    weight = tensors["base_model.model.classifier.weight"]
    np.testing.assert_array_equal(weight, parameters["head.output.kernel"].T)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["modules_to_save"] == ["classifier"]


def test_an_adapter_of_a_fused_layer_from_elsewhere(tmp_path: Path) -> None:
    """Queries, keys and values share one lora_A there."""
    adapted, parameters = with_random_adapters("Phi3ForCausalLM")
    save_adapter(tmp_path, adapted, parameters)
    file = tmp_path / "adapter_model.safetensors"
    tensors = load_file(file)
    rng = np.random.default_rng(5)
    dense = {key: rng.normal(size=t.shape).astype(np.float32) for key, t in tensors.items()}
    save_file(dense, file)
    again, loaded = load_adapter(tmp_path, adapted.base)
    together = merged(again, parameters | jax.tree.map(jnp.asarray, loaded))
    name = "base_model.model.model.layers.0.self_attn.qkv_proj.lora"
    scale = 32 / 3
    product = scale * (dense[f"{name}_B.weight"] @ dense[f"{name}_A.weight"]).T
    kernels = [f"blocks.0.attention.{part}.kernel" for part in ("query", "key", "value")]
    got = [np.asarray(together[k] - parameters[k]).reshape(32, -1) for k in kernels]
    np.testing.assert_allclose(np.concatenate(got, axis=1), product, rtol=1e-3, atol=1e-3)


def _shorter(directory: Path) -> None:
    file = directory / "adapter_model.safetensors"
    tensors = load_file(file)
    name = next(key for key in tensors if key.endswith("lora_A.weight"))
    save_file({**tensors, name: tensors[name][:, :-1].copy()}, file)


def _without_config(directory: Path) -> None:
    (directory / "adapter_config.json").unlink()


def _set(**values: Any) -> Any:
    def change(directory: Path) -> None:
        file = directory / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return change


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("Phi3ForCausalLM", None, ModelError, r"made for some/base.*Phi3.*Llama"),
        ("LlamaForCausalLM", _shorter, ModelError, r"some/base.*other shapes for .*lora_A"),
        ("LlamaForCausalLM", _without_config, ModelError, r"holds no adapters: it has no ada"),
        ("LlamaForCausalLM", _set(use_dora=True), ConfigError, r"use_dora=True.*plain LoRA"),
        ("LlamaForCausalLM", _set(peft_type="IA3"), ConfigError, r"IA3.*only LoRA"),
    ],
)
def test_adapters_that_do_not_suit_are_refused(
    tmp_path: Path, name: str, change: Any, error: type[Exception], message: str
) -> None:
    adapted, parameters = with_random_adapters("LlamaForCausalLM")
    save_adapter(tmp_path, adapted, parameters, base="some/base")
    if change is not None:
        change(tmp_path)
    with pytest.raises(error, match=message):
        load_adapter(tmp_path, described(base_of(name)))


@pytest.mark.parametrize("base", ["own class", "published name", "directory"])
def test_adapters_of_another_architecture_with_the_same_shapes_are_refused(
    tmp_path: Path, base: str
) -> None:
    """Mistral's layers have the names and shapes of Llama's. PEFT records the class only for models
    without a task type."""
    adapted, parameters = with_random_adapters("LlamaForCausalLM")
    directory = tmp_path / "adapter"
    save_adapter(directory, adapted, parameters)
    if base == "published name":
        name = "meta-llama/Llama-3.1-8B"
        _set(auto_mapping=None, base_model_name_or_path=name)(directory)
    elif base == "directory":
        fields = LLAMA | {"architectures": ["LlamaModel"], "model_type": "llama"}
        (tmp_path / "config.json").write_text(json.dumps(fields))
        _set(auto_mapping=None, base_model_name_or_path=str(tmp_path))(directory)
    load_adapter(directory, adapted.base)
    fields = LLAMA | {"architectures": ["MistralForCausalLM"], "sliding_window": None}
    mistral = described(random_model(fields))
    assert mistral.architecture.name == "MistralForCausalLM"
    with pytest.raises(ModelError, match=r"does not fit this Mistral.*: it is for .*[Ll]lama"):
        load_adapter(directory, mistral)


def test_unknown_targets_are_refused_with_those_there_are() -> None:
    model = described(base_of("LlamaForCausalLM"))
    with pytest.raises(ModelError, match=r"no linear layer called qkv_proj.*down_proj.*v_proj"):
        adapt(model, LoRA(targets="q_proj,qkv_proj"))


def _plain(model: Described, parameters: Parameters) -> Any:
    return merge(model.architecture.abstract(model.config)[0], parameters)(**TOKENS)


def test_gradients_are_those_of_the_product() -> None:
    adapted, parameters = with_random_adapters("LlamaForCausalLM")
    learning = {path: parameters[path] for path in adapted.trained()}

    def loss(change: Any, learning: Parameters) -> jax.Array:
        return jnp.sum(jnp.sin(change({**parameters, **learning})))

    def gradient(change: Any) -> Parameters:
        made = jax.jit(jax.grad(partial(loss, change)), compiler_options=QUICK_COMPILE)
        return made(learning)

    got = gradient(lambda p: _plain(adapted.model, p))
    expected = gradient(lambda p: _plain(adapted.base, merged(adapted, p)))
    for path in learning:
        np.testing.assert_allclose(got[path], expected[path], rtol=2e-3, atol=2e-3, err_msg=path)


def test_adapters_that_are_switched_off_leave_the_base() -> None:
    adapted, parameters = with_random_adapters("LlamaForCausalLM")
    graph, _ = adapted.model.architecture.abstract(adapted.model.config)
    model = merge(graph, parameters)
    switch_adapters(model, False)
    got = jax.jit(lambda tokens: model(tokens), compiler_options=QUICK_COMPILE)(TEXT)
    base = outputs(adapted.base, base_of("LlamaForCausalLM").parameters, TOKENS)
    np.testing.assert_array_equal(got, base)


ROWS = next_tokens(np.random.default_rng(0).integers(0, 64, (4, 9)).astype(np.int32))
MESHES = {
    "one core": Parallelism(),
    "fsdp, tensor, accumulated": Parallelism(
        fully_sharded_size=2, tensor_parallel_size=2, gradient_accumulation_steps=2
    ),
    "pipeline": Parallelism(pipeline_parallel_size=2, pipeline_parallel_num_microbatches=2),
    "data, tensor, scanned, recomputed": Parallelism(
        data_parallel_size=2, tensor_parallel_size=2, scan_layers=True, recompute="full"
    ),
    "ring": Parallelism(context_parallel_size=2),
}


class Trained(NamedTuple):
    adapted: Adapted
    base: Parameters
    training: Training
    state: TrainState
    losses: list[float]


@cache
def adapted_at_first() -> tuple[Adapted, Parameters, Parameters]:
    """A model with adapters, the weights of its base, and those that are trained."""
    base = random_model({**LLAMA, "architectures": ["LlamaForCausalLM"]})
    adapted = adapt(described(base), LoRA(rank=4, dropout=0.3, targets="k_proj,o_proj,up_proj"))
    trained = adapted.trained()
    whole = SingleDeviceSharding(jax.devices()[0])
    added = random_parameters(adapted.model, trained, 0, dict.fromkeys(trained, whole))
    return adapted, *jax.tree.map(np.asarray, (base.parameters, added))


def training_of(parallelism: Parallelism, devices: list[jax.Device], precision: str) -> Training:
    adapted, _, _ = adapted_at_first()
    return make_training(
        adapted.model,
        optax.adam(1e-2),
        parallelism,
        PRECISIONS[precision],
        mesh=parallelism.mesh(devices),
        batch=jax.eval_shape(lambda: ROWS),
        trained=adapted.trained(),
        seed=0,
    )


@cache
def train(mesh: str) -> Trained:
    """Three steps with dropout."""
    parallelism = MESHES[mesh]
    training = training_of(parallelism, jax.devices(), "fp32")
    adapted, base, added = adapted_at_first()
    weights = {**base, **added}
    weights = stack(weights) if parallelism.stacks else weights
    state = training.start(jax.device_put(weights, training.shardings.parameters))
    losses = []
    for _ in range(3):
        state, values = training.step(state, ROWS)
        losses.append(float(values["loss"]))
    return Trained(adapted, base, training, state, losses)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", list(MESHES)[1:])
def test_dropout_and_losses_do_not_depend_on_the_mesh(mesh: str) -> None:
    losses = train(mesh).losses
    np.testing.assert_allclose(losses, train("one core").losses, rtol=1e-4)
    assert losses[-1] < losses[0]


@pytest.mark.slow
def test_the_base_keeps_every_bit_and_is_not_in_the_optimizer() -> None:
    adapted, base, _, state, _ = train("fsdp, tensor, accumulated")
    for path, value in base.items():
        np.testing.assert_array_equal(state.parameters[path], value, err_msg=path)
    moments = moments_of(state)
    assert moments.keys() == adapted.trained()
    assert not any(leaf.sharding.is_fully_replicated for leaf in moments.values())


def test_the_base_is_held_as_layers_compute(neuron_devices: list[jax.Device]) -> None:
    adapted, base, _ = adapted_at_first()
    state = training_of(Parallelism(), neuron_devices, "mixed_precision").state
    assert {state.parameters[path].dtype for path in base} == {jnp.dtype("bfloat16")}
    wide = [*moments_of(state).values(), *(state.parameters[path] for path in adapted.trained())]
    assert {leaf.dtype for leaf in wide} == {jnp.dtype("float32")}


def moments_of(state: TrainState) -> dict[str, Any]:
    return {
        path[-1].key: leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(state.optimizer)
        if hasattr(path[-1], "key")
    }
