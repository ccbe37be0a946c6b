"""What torchvision's VGG says of two images, with weights that its names determine.

    python -m tests.models.vgg_reference

writes the answers again, where there is a torchvision (tests/models/detector_reference.py).
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.models.detector_reference import define_suppression, numbers

ANSWERS = Path(__file__).parent / "vgg_answers.json"
CHANNELS, DEPTHS, HIDDEN, LABELS = (4, 6, 8, 8, 10), (1, 1, 2, 2, 2), 16, 7


def pixels() -> np.ndarray:
    """Two images, FP32 [2, 224, 224, 3]."""
    return np.random.default_rng(0).normal(size=(2, 224, 224, 3)).astype(np.float32)


def main() -> None:
    library = define_suppression()  # kept, as its operator goes with it
    import torch
    from torchvision.models import vgg

    layers: list[Any] = []
    for width, depth in zip(CHANNELS, DEPTHS, strict=True):
        layers += [*[width] * depth, "M"]
    model = vgg.VGG(vgg.make_layers(layers), LABELS).eval()
    last = CHANNELS[-1] * 7 * 7
    for place, sizes in {0: (last, HIDDEN), 3: (HIDDEN, HIDDEN), 6: (HIDDEN, LABELS)}.items():
        model.classifier[place] = torch.nn.Linear(*sizes)
    state = {
        name: torch.from_numpy(numbers(name, tuple(value.shape)))
        for name, value in model.state_dict().items()
    }
    model.load_state_dict(state)
    with torch.no_grad():
        logits = model(torch.from_numpy(pixels()).permute(0, 3, 1, 2))
    shapes = {name: list(value.shape) for name, value in state.items()}
    ANSWERS.write_text(json.dumps({"shapes": shapes, "logits": logits.tolist()}) + "\n")
    del library


if __name__ == "__main__":
    main()
