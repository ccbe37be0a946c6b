"""What torchvision's Faster R-CNN finds in two images, with weights that its names determine.

    python -m tests.models.detector_reference

writes the answers again. torchvision is no dependency of any extra, as transformers preprocesses
images with it where it finds it, and rounds otherwise.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

ANSWERS = Path(__file__).parent / "detector_answers.json"
SIZE = (64, 96)
ANCHORS, LABELS, DIM, HIDDEN = (8, 16, 32, 64, 128), 5, 16, 32
GAINS = {"bbox_pred": 0.03, "cls_score": 6.0, "features": 1.6, "classifier": 2.0}
"""Part of a name -> how far weights reach, so that boxes move little and scores differ."""
LEVEL_PROPOSALS, PROPOSALS, OBJECTS = 40, 143, 30


def numbers(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A tensor of the checkpoint, FP32: weights that keep the size of activations."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if name.endswith("running_var"):
        return rng.uniform(0.8, 1.2, shape).astype(np.float32)
    if len(shape) == 1:
        middle = 1.0 if name.endswith(".weight") else 0.0
        return (middle + 0.1 * rng.normal(size=shape)).astype(np.float32)
    gain = next((gain for part, gain in GAINS.items() if part in name), 1.0)
    deviation = gain / np.sqrt(np.prod(shape[1:]))
    return (deviation * rng.normal(size=shape)).astype(np.float32)


def pixels() -> np.ndarray:
    """Two images, FP32 [2, *SIZE, 3]."""
    return np.random.default_rng(0).normal(size=(2, *SIZE, 3)).astype(np.float32)


def define_suppression() -> Any:
    """Of torchvision's operators the only one that is not written in Python, too: its wheels are
    made for torch with CUDA, and cannot load it without."""
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

    def suppress(boxes: Any, scores: Any, most: float) -> Any:
        left, kept = scores.argsort(descending=True, stable=True), []
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1)
        while len(left):
            best, left = left[0], left[1:]
            kept.append(best)
            begin = torch.maximum(boxes[best, :2], boxes[left, :2])
            end = torch.minimum(boxes[best, 2:], boxes[left, 2:])
            common = (end - begin).clamp(min=0).prod(dim=1)
            left = left[common / (areas[best] + areas[left] - common) <= most]
        return torch.stack(kept) if kept else torch.zeros(0, dtype=torch.int64)

    library.impl("nms", suppress, "CPU")
    return library


def main() -> None:
    library = define_suppression()  # kept, as its operator goes with it
    import torch
    from torchvision.models import resnet
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.backbone_utils import BackboneWithFPN
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
    from torchvision.models.detection.image_list import ImageList
    from torchvision.ops import boxes as operators

    operators._assert_has_ops = lambda: None
    stages = {f"layer{i}": str(i - 1) for i in range(1, 5)}
    body = resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1])
    model: Any = FasterRCNN(
        BackboneWithFPN(body, stages, [256, 512, 1024, 2048], DIM),
        rpn_anchor_generator=AnchorGenerator(
            tuple((size,) for size in ANCHORS), ((0.5, 1.0, 2.0),) * len(ANCHORS)
        ),
        box_head=TwoMLPHead(DIM * 7**2, HIDDEN),
        box_predictor=FastRCNNPredictor(HIDDEN, LABELS),
        rpn_pre_nms_top_n_test=LEVEL_PROPOSALS,
        rpn_post_nms_top_n_test=PROPOSALS,
        box_detections_per_img=OBJECTS,
    ).eval()
    state = model.state_dict()
    for name, value in state.items():
        if value.dtype == torch.float32:
            state[name] = torch.from_numpy(numbers(name, tuple(value.shape)))
    model.load_state_dict(state)
    images = torch.from_numpy(pixels()).permute(0, 3, 1, 2)
    with torch.no_grad():
        levels = model.backbone(images)
        listed = ImageList(images, [SIZE] * len(images))
        proposals, _ = model.rpn(listed, levels)
        objects, _ = model.roi_heads(levels, proposals, listed.image_sizes)
    answers = {
        "shapes": {n: list(v.shape) for n, v in state.items() if v.dtype == torch.float32},
        "proposals": [boxes.tolist() for boxes in proposals],
        "objects": [{name: v.tolist() for name, v in each.items()} for each in objects],
    }
    ANSWERS.write_text(json.dumps(answers) + "\n")
    del library


if __name__ == "__main__":
    main()
