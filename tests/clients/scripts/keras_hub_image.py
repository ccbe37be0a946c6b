# package: keras-hub
"""Keras Hub: a small vision transformer is fitted to random pictures."""

import json

import keras
import keras_hub
import numpy as np

keras.utils.set_random_seed(0)
backbone = keras_hub.models.ViTBackbone(
    image_shape=(32, 32, 3), patch_size=8, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64,
    dropout_rate=0.0, attention_dropout=0.0,
)  # fmt: skip
model = keras_hub.models.ViTImageClassifier(
    backbone=backbone, num_classes=4, dropout=0.0, preprocessor=None
)
model.compile(
    optimizer=keras.optimizers.Adam(1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
rng = np.random.default_rng(0)
pictures, labels = rng.normal(size=(32, 32, 32, 3)), rng.integers(0, 4, 32)
history = model.fit(pictures, labels, batch_size=8, epochs=3, shuffle=False, verbose=0)
print(json.dumps([*map(float, history.history["loss"])]))
