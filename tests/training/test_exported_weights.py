"""What a run leaves behind is what was trained: averaged and quantized as its recipe says."""

from pathlib import Path

import numpy as np

from launch import checkpoints
from launch.generator import load_run
from launch.trainer import train
from launch.training.parameter_kinds import Kind, kind_of
from tests.launch.programs import SOURCE, config


def test_weights_of_quantization_aware_training(tmp_path: Path) -> None:
    run = config(tmp_path, steps=2, precision="qat_int8", ema_decay=0.5)
    assert train(SOURCE, run) == 0
    exported = load_run(tmp_path, None).model
    target = exported.parameters
    step = checkpoints.newest(tmp_path, move_aside=False)
    assert step == 2
    average = checkpoints.restore(tmp_path, step, checkpoints.AVERAGE, target)
    weights = checkpoints.restore(tmp_path, step, checkpoints.PARAMETERS, target)
    for path, found in exported.parameters.items():
        kept = np.asarray(average[path], np.float64)
        assert not np.array_equal(kept, weights[path]), path
        if kind_of(path) is not Kind.MATRIX:
            np.testing.assert_array_equal(found, kept, err_msg=path)
            continue
        # One scale for each output: heads and their numbers, or the width.
        axes = (0, 1) if path.endswith("output.kernel") else (0,)
        scale = np.abs(kept).max(axes, keepdims=True) / 127
        np.testing.assert_allclose(found, np.round(kept / scale) * scale, rtol=1e-5, err_msg=path)
