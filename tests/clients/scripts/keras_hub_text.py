# package: keras-hub
"""Keras Hub: a small Gemma is fitted to random texts, and continues one of them greedily."""

import json

import keras
import keras_hub
import numpy as np

keras.utils.set_random_seed(0)
backbone = keras_hub.models.GemmaBackbone(
    vocabulary_size=64, num_layers=2, num_query_heads=2, num_key_value_heads=1, hidden_dim=32,
    intermediate_dim=64, head_dim=16,
)  # fmt: skip
model = keras_hub.models.GemmaCausalLM(backbone, preprocessor=None)
model.compile(
    optimizer=keras.optimizers.Adam(1e-2),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    sampler="greedy",
)
tokens = np.random.default_rng(0).integers(1, 64, (32, 17))
features = {"token_ids": tokens[:, :-1], "padding_mask": np.ones((32, 16), "int32")}
history = model.fit(features, tokens[:, 1:], batch_size=8, epochs=3, shuffle=False, verbose=0)
prompt = {"token_ids": tokens[:1, :16], "padding_mask": np.array([[1] * 6 + [0] * 10])}
written = model.generate(prompt, stop_token_ids=None)["token_ids"]
print(json.dumps([*map(float, history.history["loss"]), *np.asarray(written)[0].tolist()]))
