"""LoRA in a pipeline's weights against diffusers and PEFT, which fuse them too."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from models.diffusion.lora import fuse
from models.diffusion.parts import load, save
from models.errors import WeightsError

diffusers = pytest.importorskip(
    "diffusers", reason="diffusers is not installed: the reference needs the extra `parity`"
)
import torch  # noqa: E402 (the reference is made of it)
from safetensors.torch import save_file  # noqa: E402

from tests.models.parity.test_pipeline import sdxl, stable_diffusion  # noqa: E402

SCALE, RANK, ALPHA = 0.7, 3, 5.0
ATTENTION = "attentions.0.transformer_blocks.0"
LAYERS = {
    "unet": (
        f"down_blocks.1.{ATTENTION}.attn1.to_q",
        f"mid_block.{ATTENTION}.attn2.to_out.0",
        f"up_blocks.0.{ATTENTION}.ff.net.0.proj",
        "mid_block.attentions.0.proj_in",
        "down_blocks.0.resnets.0.conv1",
        "up_blocks.1.resnets.1.time_emb_proj",
        "up_blocks.1.resnets.0.conv_shortcut",
        "mid_block.resnets.1.conv2",
        "down_blocks.0.downsamplers.0.conv",
        "up_blocks.0.upsamplers.0.conv",
        "conv_in",
        "time_embedding.linear_2",
    ),
    "text_encoder": ("encoder.layers.1.self_attn.q_proj", "encoder.layers.0.mlp.fc1"),
    "text_encoder_2": ("encoder.layers.0.self_attn.out_proj",),
}
STABILITY = {
    f"down_blocks.1.{ATTENTION}.attn1.to_q": "input_blocks_3_1_transformer_blocks_0_attn1_to_q",
    f"mid_block.{ATTENTION}.attn2.to_out.0": "middle_block_1_transformer_blocks_0_attn2_to_out_0",
    f"up_blocks.0.{ATTENTION}.ff.net.0.proj": (
        "output_blocks_0_1_transformer_blocks_0_ff_net_0_proj"
    ),
    "mid_block.attentions.0.proj_in": "middle_block_1_proj_in",
    "down_blocks.0.resnets.0.conv1": "input_blocks_1_0_in_layers_2",
    "up_blocks.1.resnets.1.time_emb_proj": "output_blocks_3_0_emb_layers_1",
    "up_blocks.1.resnets.0.conv_shortcut": "output_blocks_2_0_skip_connection",
    "mid_block.resnets.1.conv2": "middle_block_2_out_layers_3",
    "down_blocks.0.downsamplers.0.conv": "input_blocks_2_0_op",
    "up_blocks.0.upsamplers.0.conv": "output_blocks_1_2_conv",
    "conv_in": "input_blocks_0_0",
    "time_embedding.linear_2": "time_embed_2",
}
UP = ("lora_B.weight", "lora_up.weight", "lora.up.weight")
KOHYA = {"unet": "lora_unet", "text_encoder": "lora_te1", "text_encoder_2": "lora_te2"}
Matrices = tuple[torch.Tensor, torch.Tensor]
File = tuple[dict[str, torch.Tensor], dict[str, str]]


def pairs(pipe: Any) -> Iterator[tuple[str, str, Matrices]]:
    """Random matrices for the layers that a pipeline has: part, name, down and up."""
    torch.manual_seed(3)
    for part, names in LAYERS.items():
        if getattr(pipe, part, None) is None:
            continue
        for name in names:
            layer = find(getattr(pipe, part), name)
            out, *inside = layer.weight.shape
            ends = [1] * (len(inside) - 1)
            yield part, name, (torch.randn(RANK, *inside), 0.2 * torch.randn(out, RANK, *ends))


def find(model: Any, name: str) -> Any:
    """The layer; text models of older transformers have one more level."""
    modules = dict(model.named_modules())
    return modules[name] if name in modules else modules[f"text_model.{name}"]


def peft(pipe: Any) -> File:
    tensors, settings = {}, {}
    for part, name, (down, up) in pairs(pipe):
        inside = name if part == "unet" else f"text_model.{name}"
        tensors[f"{part}.{inside}.lora_A.weight"] = down
        tensors[f"{part}.{inside}.lora_B.weight"] = up
        settings |= {f"{part}.r": RANK, f"{part}.lora_alpha": ALPHA}
        settings.setdefault(f"{part}.target_modules", []).append(name)
    return tensors, {"lora_adapter_metadata": json.dumps(settings)}


def older(pipe: Any) -> File:
    tensors = {}
    for part, name, matrices in pairs(pipe):
        if part == "unet" and ".attn" in name:
            layer = name.replace("to_out.0", "to_out").replace(".to_", ".processor.to_")
            for role, matrix in zip(("down", "up"), matrices, strict=True):
                tensors[f"unet.{layer}_lora.{role}.weight"] = matrix
    return tensors, {}


def kohya(pipe: Any, names: Callable[[str], str] = lambda name: name.replace(".", "_")) -> File:
    tensors = {}
    for part, name, (down, up) in pairs(pipe):
        if "self_attn" in name:  # diffusers leaves them out with transformers 5
            continue
        flat = names(name) if part == "unet" else f"text_model_{name.replace('.', '_')}"
        layer = f"{KOHYA[part]}_{flat}"
        tensors[f"{layer}.lora_down.weight"] = down
        tensors[f"{layer}.lora_up.weight"] = up
        tensors[f"{layer}.alpha"] = torch.tensor(ALPHA)
    return tensors, {}


def stability(pipe: Any) -> File:
    return kohya(pipe, STABILITY.__getitem__)


@pytest.mark.filterwarnings("ignore")  # of PEFT
@pytest.mark.parametrize(
    ("make", "write"),
    [
        (stable_diffusion, peft),
        (stable_diffusion, older),
        (stable_diffusion, kohya),
        (sdxl, peft),
        (sdxl, stability),
    ],
)
def test_weights_are_those_that_diffusers_fuses(
    make: Callable[[], Any], write: Callable[[Any], File], tmp_path: Path
) -> None:
    pipe = make() if make is sdxl else make(**LEVELS)
    pipe.save_pretrained(tmp_path / "model")
    file = tmp_path / "lora.safetensors"
    tensors, metadata = write(pipe)
    save_file(tensors, file, {"format": "pt", **metadata})
    fused = fuse(load(tmp_path / "model"), file, SCALE)
    save(tmp_path / "ours", fused, tmp_path / "model")
    parts = [part for part in LAYERS if getattr(pipe, part, None) is not None]
    before = {part: clone(getattr(pipe, part)) for part in parts}
    pipe.load_lora_weights(file.parent, weight_name=file.name)
    pipe.fuse_lora(components=parts, lora_scale=SCALE)
    pipe.unload_lora_weights()
    changed = 0
    for part in parts:
        ours = type(getattr(pipe, part)).from_pretrained(tmp_path / "ours" / part).state_dict()
        for name, expected in clone(getattr(pipe, part)).items():
            torch.testing.assert_close(ours[name], expected, rtol=1e-5, atol=1e-6)
            changed += not torch.equal(expected, before[part][name])
    assert changed == len([name for name in tensors if name.endswith(UP)])


LEVELS = {
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
    "use_linear_projection": False,  # proj_in is a convolution
}


def clone(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "holds no LoRA"),
        ({"x": 1}, "'x', which is not part of a LoRA"),
        (
            {"unet.conv_in.lora_A.weight": (3, 4, 3, 3)},
            "only one of the two LoRA matrices of conv_in",
        ),
        (
            {"unet.conv_in.lora_A.weight": (3, 4), "unet.conv_in.lora_B.weight": (16, 2)},
            r"have the shapes \[3, 4\] and \[16, 2\], which do not fit",
        ),
        (
            {"unet.conv_in.lora_A.weight": (3, 4), "unet.conv_in.lora_B.weight": (16, 3)},
            r"has the shape \[16, 4\], but the model's weight has \[16, 4, 3, 3\]",
        ),
        ({"unet.a.b.lora_A.weight": (3, 4)}, "lacks 1 of its layers: unet: a.b"),
        ({"lora_te2_a.lora_up.weight": (3, 4)}, "lacks 1 of its layers: text_encoder_2: a"),
        ({"lora_unet_conv_in.hada_w1_a": (3, 4)}, "holds LoHa"),
        ({"unet.conv_in.lora_magnitude_vector": (3, 4)}, "holds DoRA"),
    ],
)
def test_files_that_do_not_suit_are_refused(
    tensors: dict[str, Any], message: str, pipeline: Any, tmp_path: Path
) -> None:
    file = tmp_path / "lora.safetensors"
    save_file({name: torch.ones(shape) for name, shape in tensors.items()}, file)
    with pytest.raises(WeightsError, match=message):
        fuse(pipeline, file)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("model")
    stable_diffusion().save_pretrained(directory)
    return load(directory)


def test_settings_that_cannot_be_read_are_refused(pipeline: Any, tmp_path: Path) -> None:
    file = tmp_path / "lora.safetensors"
    for settings, message in (
        ("[", "the metadata of .* cannot be used"),
        ('{"unet.lora_alpha": "a"}', "has alpha='a', but it must be a number"),
    ):
        save_file(older(stable_diffusion(**LEVELS))[0], file, {"lora_adapter_metadata": settings})
        with pytest.raises(WeightsError, match=message):
            fuse(pipeline, file)
    with pytest.raises(WeightsError, match="is nan, but it must be a finite number"):
        fuse(pipeline, file, float("nan"))
