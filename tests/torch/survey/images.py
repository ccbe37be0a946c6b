"""Small models of timm with inputs, one of most of its files; timm needs the torchvision that was
built for the installed torch."""

from __future__ import annotations

from collections.abc import Callable

import timm
import torch

from tests.torch.survey.architectures import Model

NAMES = [
    "test_resnet", "test_vit", "test_vit2", "test_vit3", "test_vit4", "test_efficientnet",
    "test_convnext", "test_convnext2", "test_byobnet", "test_nfnet", "test_mambaout", "resnet18",
    "regnetx_002", "mobilenetv2_035", "mobilenetv3_small_050", "mnasnet_small", "vgg11",
    "vit_tiny_patch16_224", "deit_tiny_patch16_224", "swin_tiny_patch4_window7_224",
    "xcit_nano_12_p16_224", "poolformer_s12", "mixer_s32_224", "gmlp_ti16_224", "resmlp_12_224",
    "levit_128s", "mobilevit_xxs", "edgenext_xx_small", "ghostnet_050", "lcnet_035", "tinynet_e",
    "repvgg_a0", "dla34", "ese_vovnet19b_slim_dw", "skresnet18", "pit_ti_224",
    "eva02_tiny_patch14_224", "efficientvit_b0", "inception_next_atto", "starnet_s1",
    "convnext_atto", "fastvit_t8", "repvit_m0_9", "rexnet_100",
]  # fmt: skip
SIDE = 64
"""Of images, unless a model is made for another side."""


def of_timm() -> dict[str, Callable[[], Model]]:
    """The models, by name."""
    return {name: lambda name=name: _of_timm(name) for name in NAMES}


def _of_timm(name: str) -> Model:
    torch.manual_seed(0)
    try:
        module = timm.create_model(name, img_size=SIDE)
        side = SIDE
    except TypeError:
        module = timm.create_model(name)
        is_fixed = module.default_cfg.get("fixed_input_size")
        side = module.default_cfg["input_size"][-1] if is_fixed else SIDE
    return Model(module.eval(), {"x": torch.randn(1, 3, side, side)})
