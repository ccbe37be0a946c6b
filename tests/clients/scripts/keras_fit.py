# package: keras
"""Keras with its JAX backend: a small classifier is fitted, then evaluated on held-out data."""

import json

import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
inputs = rng.normal(size=(256, 8, 8, 3)).astype("float32")
labels = (inputs.mean((1, 2, 3)) > 0).astype("int32")
model = keras.Sequential(
    [
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(2),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer=keras.optimizers.Adam(1e-2), loss=loss)
history = model.fit(inputs[:192], labels[:192], batch_size=32, epochs=3, shuffle=False, verbose=0)
held_out = model.evaluate(inputs[192:], labels[192:], verbose=0)
print(json.dumps([*map(float, history.history["loss"]), float(held_out)]))
