"""Directories: loading into shardings, saving, and every way in which files do not suit."""

import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import Mesh
from safetensors.numpy import load_file, save_file

from models import pretrained
from models.errors import ConfigError, ModelsError, ShardingError, WeightsError
from models.pretrained import Pretrained
from models.weights.directory import open_tensors
from models.weights.plan import reading_plan, writing_plan
from models.weights.table import KeyTable, row
from models.weights.transforms import FLAT, KERNEL
from tests.models.tiny import random_model

FIELDS = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "vocab_size": 24,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "num_local_experts": 4,
    "tie_word_embeddings": False,
}
FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
KEY = "model.layers.1.self_attn.q_proj.weight"


def build(**changes: Any) -> Pretrained:
    return random_model(FIELDS | changes)


@pytest.fixture(scope="module")
def model() -> Pretrained:
    return build()


@pytest.fixture(scope="module")
def saved(model: Pretrained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoint")
    pretrained.save(directory / "one", model)
    pretrained.save(directory / "many", model, shard_bytes=3000)
    return directory


@pytest.fixture
def copy(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved / "one", tmp_path / "copy"))


@pytest.fixture
def shards(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved / "many", tmp_path / "shards"))


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def rewrite(directory: Path, change: Callable[[dict[str, np.ndarray]], Any]) -> None:
    tensors = load_file(directory / FILE)
    change(tensors)
    save_file(tensors, directory / FILE)


@pytest.mark.parametrize("layout", ["one", "many"])
@pytest.mark.parametrize(
    "mesh_sizes", [{"data": 1}, {"model": 2}, {"data": 2, "expert": 2, "model": 2}, {"fsdp": 4}]
)
def test_what_was_saved_is_loaded_into_its_shardings(
    devices: list[jax.Device],
    model: Pretrained,
    saved: Path,
    layout: str,
    mesh_sizes: dict[str, int],
) -> None:
    size = int(np.prod(list(mesh_sizes.values())))
    mesh = Mesh(np.array(devices[:size]).reshape(*mesh_sizes.values()), tuple(mesh_sizes))
    loaded = pretrained.load(saved / layout, mesh)
    assert_equal(loaded.parameters, model.parameters)
    assert loaded.config == model.config
    experts = loaded.parameters["blocks.0.mlp.experts_up"].sharding.spec
    assert tuple(experts) == tuple(
        axis if axis in mesh_sizes else None for axis in ("expert", "fsdp", "model")
    )


def test_files_are_split_and_indexed(saved: Path, model: Pretrained) -> None:
    index = json.loads((saved / "many" / INDEX).read_text())
    files = sorted(path.name for path in (saved / "many").glob("*.safetensors"))
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert len(files) > 3
    for file in files:
        tensors = load_file(saved / "many" / file)
        assert {key for key, place in index["weight_map"].items() if place == file} == set(tensors)
    assert index["metadata"]["total_size"] == sum(v.nbytes for v in model.parameters.values())


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("wanted", ["float32", "bfloat16"])
def test_weights_are_converted_once(tmp_path: Path, stored: str, wanted: str) -> None:
    model = build(dtype=stored)
    pretrained.save(tmp_path, model)
    loaded = pretrained.load(tmp_path, param_dtype=wanted)
    assert loaded.config.dtype == stored
    for name, value in model.parameters.items():
        expected = np.asarray(value).astype(np.dtype(getattr(ml_dtypes, wanted, wanted)))
        assert loaded.parameters[name].dtype == expected.dtype
        np.testing.assert_array_equal(loaded.parameters[name], expected)


def test_keys_without_the_prefix_and_constant_tables(copy: Path, model: Pretrained) -> None:
    def change(tensors: dict[str, np.ndarray]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("model.")] = tensors.pop(name)
        tensors["layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)

    rewrite(copy, change)
    assert_equal(pretrained.load(copy).parameters, model.parameters)


def test_everything_wrong_is_in_one_error(copy: Path) -> None:
    def change(tensors: dict[str, np.ndarray]) -> None:
        del tensors[KEY], tensors["model.layers.0.block_sparse_moe.experts.2.w1.weight"]
        tensors["model.layers.2.input_layernorm.weight"] = np.ones(8, np.float32)
        tensors["model.layers.0.block_sparse_moe.experts.4.w1.weight"] = np.ones((12, 8))
        tensors["surprise"] = np.ones(8, np.float32)

    rewrite(copy, change)
    with pytest.raises(WeightsError) as caught:
        pretrained.load(copy)
    text = str(caught.value)
    for name in (
        "surprise",
        "model.layers.2.input_layernorm.weight",
        "model.layers.0.block_sparse_moe.experts.4.w1.weight",
        str(copy / FILE),
        f"blocks.1.attention.query.kernel (usually stored as {KEY})",
        "Check that config.json and the weights belong together",
        "blocks.0.mlp.experts_gate (index 2)",
    ):
        assert name in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 1}, r"tensors without a parameter \(\d+\): model\.layers\.1\."),
        (
            {"num_hidden_layers": 3},
            r"parameters without a tensor .* \(usually stored as model\.layers\.2\.",
        ),
        ({"num_local_experts": 3}, r"tensors without a parameter .*experts\.3\."),
        ({"num_local_experts": 5}, r"parameters without a tensor .* \(index 4\)"),
        ({"vocab_size": 25}, r"embed_tokens.* the shape \[24, 8\], but .* needs \[25, 8\]"),
        ({"intermediate_size": 16}, r"w\d\.weight.* has the shape .*12.*, but .* needs .*16"),
        ({"num_key_value_heads": 4}, r"k_proj.* the shape \[4, 8\], but .* needs \[8, 8\]"),
        ({"head_dim": 4}, r"k_proj.* the shape \[4, 8\], but .* needs \[8, 8\]"),
        (
            {"architectures": ["LlamaForCausalLM"]},
            r"tensors without a parameter .*block_sparse_moe",
        ),
    ],
)
def test_a_config_that_contradicts_the_weights_is_refused_before_anything_is_read(
    copy: Path, changes: dict[str, Any], message: str
) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | changes))
    read: list[int] = []
    with pytest.raises(WeightsError, match=message) as caught:
        pretrained.load(copy, on_tensor=read.append)
    assert str(copy / FILE) in str(caught.value)
    assert "config.json and the weights belong together" in str(caught.value)
    assert read == []


def test_two_layouts_at_once_are_refused(copy: Path) -> None:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors["model.layers.0.mlp.experts.down_proj"] = np.ones((4, 8, 12), np.float32)

    rewrite(copy, change)
    with pytest.raises(WeightsError, match=r"with more than one tensor \(1\): blocks\.0\.mlp\.ex"):
        pretrained.load(copy)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (np.ones((8, 9), np.float32), r"q_proj.* has the shape \[8, 9\], but .* needs \[8, 8\]"),
        (np.ones(64, np.float32), r"q_proj.* has the shape \[64\], but .* needs \[8, 8\]"),
        (np.ones((8, 8), np.int8), r"q_proj.* has the dtype int8, but .* needs float32\. Check"),
    ],
)
def test_wrong_shape_and_kind_are_named(copy: Path, tensor: np.ndarray, message: str) -> None:
    rewrite(copy, lambda tensors: tensors.update({KEY: tensor}))
    with pytest.raises(WeightsError, match=message):
        pretrained.load(copy)


def remove(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def swap(old: str, new: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        (directory / INDEX).write_text((directory / INDEX).read_text().replace(old, new))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda d: next(d.glob("model-00002*")).unlink(),
            r"lacks 1 of the \d+ files .*: model-00002-of-\d+\.safetensors\. Download",
        ),
        (swap("lm_head", "other_head"), r"disagree: only the index has \['other_head\.weight'\]"),
        (swap("model-00001-of", "../model-00001-of"), "names files outside its directory"),
        (lambda d: (d / INDEX).write_text("{}"), "cannot be used: KeyError"),
        (lambda d: (d / INDEX).write_text("[[["), "cannot be used: JSONDecodeError"),
        (lambda d: (d / INDEX).write_text("[" * 100_000), "cannot be used: RecursionError"),
        (lambda d: (d / INDEX).write_text('{"weight_map": 3}'), "cannot be used: "),
    ],
)
def test_a_damaged_set_of_files_is_named(
    shards: Path, change: Callable[[Path], None], message: str
) -> None:
    change(shards)
    with pytest.raises(WeightsError, match=message):
        pretrained.load(shards)


@pytest.mark.parametrize("layout", ["one", "many"])
def test_weights_of_a_variant_alone_are_read(
    tmp_path: Path, model: Pretrained, layout: str
) -> None:
    pretrained.save(tmp_path, model, **({} if layout == "one" else {"shard_bytes": 2000}))
    for file in tmp_path.glob("model*.safetensors"):
        head, _, number = file.stem.partition("-")
        file.rename(tmp_path / f"{head}.fp16{number and f'-{number}'}.safetensors")
    index = tmp_path / INDEX
    if layout == "many":
        files = index.read_text().replace("model-", "model.fp16-")
        index.with_name("model.safetensors.index.fp16.json").write_text(files)
        index.unlink()
    loaded = pretrained.load(tmp_path)
    for name, value in model.parameters.items():
        np.testing.assert_array_equal(loaded.parameters[name], value, err_msg=name)
    save_file({"x": np.ones(1, np.float32)}, tmp_path / "model.bf16.safetensors")
    with pytest.raises(WeightsError, match="of the variants bf16, fp16 alone"):
        pretrained.load(tmp_path)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("adapter_config.json", "holds a LoRA adapter"),
        ("model-Q4_K_M.gguf", "holds GGUF files .model-Q4_K_M.gguf., which are not supported"),
        ("snapshots/0123/config.json", "Give one of its checkpoints: .*/snapshots/0123"),
    ],
)
def test_a_directory_of_something_else_says_what_it_is(
    tmp_path: Path, file: str, message: str
) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("{}")
    with pytest.raises(ConfigError, match=message):
        pretrained.describe(tmp_path)
    with pytest.raises(WeightsError, match=message):
        open_tensors(tmp_path)


def test_pickles_by_other_names_are_not_opened(copy: Path) -> None:
    (copy / FILE).rename(copy / "model.ckpt")
    with pytest.raises(WeightsError, match=r"only in pickle files \(model\.ckpt\)"):
        pretrained.load(copy)


class _Call:
    """Pickled as a call of a function, which an ordinary reader would make."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("layout", ["archive", "sequence", "cut off", "no pickle"])
def test_what_is_in_a_file_of_pytorch_is_not_run(copy: Path, layout: str) -> None:
    (copy / FILE).unlink()
    called, file = copy / "called", copy / "pytorch_model.bin"
    data = pickle.dumps({"weight": _Call(called)})
    if layout == "no pickle":
        file.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    elif layout == "sequence":
        file.write_bytes(data)
    else:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("model/data.pkl", data)
        if layout == "cut off":
            file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(WeightsError, match=r"pytorch_model\.bin cannot be read as a file of"):
        pretrained.load(copy)
    assert not called.exists()


@pytest.mark.parametrize("name", [FILE, "config.json", INDEX, "model-00001-of-00002.safetensors"])
def test_saving_overwrites_nothing(model: Pretrained, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(WeightsError, match=f"already holds {name}, and nothing is overwritten"):
        pretrained.save(tmp_path, model)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "precious"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"model": 8}, r"splits kv_heads over model=8, .* kv_heads=2 of blocks\.0\.attention\.key"),
        ({"expert": 8}, r"splits experts over expert=8, .* experts=4 of blocks\.0\.mlp\.experts"),
        ({"fsdp": 3}, "splits dim over fsdp=3"),
    ],
)
def test_a_mesh_that_does_not_divide_is_refused_before_anything_is_read(
    saved: Path, sizes: dict[str, int], message: str
) -> None:
    size = int(np.prod(list(sizes.values())))
    mesh = Mesh(np.array(jax.devices("cpu")[:size]).reshape(*sizes.values()), tuple(sizes))
    read: list[int] = []
    with pytest.raises(ShardingError, match=message):
        pretrained.load(saved / "one", mesh, on_tensor=read.append)
    assert read == []


def test_progress_adds_up(saved: Path) -> None:
    planned: list[int] = []
    read: list[int] = []
    pretrained.load(saved / "one", on_plan=planned.append, on_tensor=read.append)
    assert planned == [sum(read)]


TABLE = KeyTable(
    rows=(
        row("h.{i}.w", "blocks.{i}.kernel", KERNEL),
        row("h.{i}.e.{e}.b", "blocks.{i}.bias", FLAT),
        row("h.{i}.all_b", "blocks.{i}.bias"),
    ),
    renames=((r"^old\.", "h."), (r"\.weight$", ".w")),
    ignored=(r".*\.table",),
)


def test_plans_follow_renames_and_numbers() -> None:
    shapes = {"blocks.0.kernel": (2, 3), "blocks.10.kernel": (2, 3), "blocks.3.bias": (2, 5)}
    keys = ["old.0.weight", "h.10.w", "h.3.e.1.b", "h.3.e.0.b", "x.table"]
    groups = {group.parameters: group.tensors for group in reading_plan(TABLE, keys, shapes)}
    assert groups == {
        ("blocks.0.kernel",): (("old.0.weight",),),
        ("blocks.10.kernel",): (("h.10.w",),),
        ("blocks.3.bias",): (("h.3.e.0.b",), ("h.3.e.1.b",)),
    }
    written = [name for g in writing_plan(TABLE, shapes) for place in g.tensors for name in place]
    assert written == ["h.0.w", "h.10.w", "h.3.e.0.b", "h.3.e.1.b"]


@pytest.mark.parametrize("key", ["h.00.w", "h.-1.w", "h.1.w2", "h..w", "h.1.wx"])
def test_keys_match_as_a_whole(key: str) -> None:
    with pytest.raises(WeightsError, match="tensors without a parameter"):
        reading_plan(TABLE, [key], {})


def test_a_parameter_that_no_row_writes_is_named() -> None:
    with pytest.raises(WeightsError, match=r"no row of the key table writes .*: other\.kernel"):
        writing_plan(TABLE, {"other.kernel": (1,)})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"cannot read .*config\.json: No such file"),
        (b"{", r"config\.json is not JSON"),
        (b"\xff\xfe", r"config\.json is not JSON"),
        (b"[1]", "holds a list, but it must be a JSON object"),
        (b'{"architectures": "x"}', "has architectures='x', but it must be a list"),
        (b"{}", "asks for model_type None, which is not supported"),
        (
            b'{"model_type": "own", "auto_map": {"AutoModel": "m.M"}}',
            r"'own', which is not supported, and names code of its own \(auto_map\), which",
        ),
        (b"[" * 100_000, r"config\.json is not JSON: maximum recursion depth"),
        (
            b'{"model_type": "llama", "hidden_size": "8"}',
            "has hidden_size='8', but it must be an integer",
        ),
        (
            b'{"model_type": "llama", "hidden_size": true}',
            "has hidden_size=True, but it must be an integer",
        ),
        (
            b'{"model_type": "llama", "hidden_size": 0}',
            "has hidden_size=0, but it must be a positive integer",
        ),
    ],
)
def test_a_config_that_cannot_be_used_is_one_clear_error(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelsError, match=message):
        pretrained.describe(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "sine"}, "hidden_act='sine': it must be one of gelu, "),
        ({"dtype": "int8"}, "has dtype='int8': choose one of float32, bfloat16, float16"),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, "rope_type='spiral': choose"),
        (
            {"rope_scaling": {"type": "linear", "factor": -1}},
            "factor=-1.0, but it must be a positive number",
        ),
        ({"rope_theta": 0}, "rope_theta=0.0, but it must be a positive number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps=nan: it must be a number from 0 to 1"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps=-1e-06: it must be a number from 0 to 1"),
        (
            {"rms_norm_eps": 10**400},
            "rms_norm_eps=10+…, but it must be a number within the range of FP64",
        ),
        ({"vocab_size": 10**30}, "vocab_size=10+: it must be a number from 1 to"),
        (
            {"num_hidden_layers": 10**6},
            "num_hidden_layers=1000000: it must be a number from 1 to 10000",
        ),
        (
            {"num_hidden_layers": 10**30, "sliding_window": 4},
            "num_hidden_layers=10+: it must be a number from 1 to 10000",
        ),
        ({"architectures": [["MixtralForCausalLM"]]}, "but it must be a list of texts"),
        ({"rope_scaling": {"type": "llama3"}}, "has no field 'factor'"),
        ({"num_key_value_heads": 3}, "num_heads=4 is not a multiple of num_kv_heads=3"),
        ({"head_dim": 5}, "head_dim=5 is odd"),
        ({"num_experts_per_tok": 5}, "per_token=5 is out of range: choose from 1 to 4"),
    ],
)
def test_settings_that_are_not_supported_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelsError, match=message):
        build(**changes)
