# package: diffuse-jax
"""Diffuse: a U-Net learns to denoise images over a mesh, and draws some."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
from diffuse.denoisers.denoiser import Denoiser
from diffuse.diffusion.sde import SDE, LinearSchedule, SDEState
from diffuse.integrator import DDIMIntegrator
from diffuse.neural_network import CondUNet2D
from diffuse.predictor import Predictor
from diffuse.timer import VpTimer
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

SHAPE = (16, 16, 1)
STEPS = 5
rows = NamedSharding(
    jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,)), P("data")
)
model = SDE(LinearSchedule(b_min=0.1, b_max=20.0, t0=0.0, T=1.0))
unet = CondUNet2D(
    in_channels=1, ch=32, ch_mult=(1, 2), num_res_blocks=1, attention_resolutions=(2,),
    dropout=False, num_heads=2, rngs=nnx.Rngs(0),
)  # fmt: skip
optimizer = nnx.Optimizer(unet, optax.adamw(1e-3), wrt=nnx.Param)


@nnx.jit
def train(unet, optimizer, images, key):
    times_key, noise_key = jax.random.split(key)
    times = jax.random.uniform(times_key, (len(images), 1), minval=1e-3)
    keys = jax.random.split(noise_key, len(images))

    def noised(key, image, time):
        return model.path(key, SDEState(image, jnp.zeros(1)), time, return_noise=True)

    states, noise = jax.vmap(noised)(keys, images, times)

    def loss(unet):
        return jnp.mean((unet(states.position, times[:, 0]).output - noise) ** 2)

    value, gradients = nnx.value_and_grad(loss)(unet)
    optimizer.update(unet, gradients)
    return value


rng = np.random.default_rng(0)
losses = []
for step in range(STEPS):
    images = jax.device_put(rng.standard_normal((8, *SHAPE)).astype(np.float32), rows)
    losses.append(float(train(unet, optimizer, images, jax.random.key(step))))


def noise(image, time):
    return unet(image[None], jnp.reshape(time, (1,))).output[0]


timer = VpTimer(n_steps=6, eps=1e-3, tf=1.0)
denoiser = Denoiser(
    integrator=DDIMIntegrator(model=model, timer=timer),
    model=model,
    predictor=Predictor(model, noise, "noise"),
    x0_shape=SHAPE,
)
final, _ = jax.jit(lambda key: denoiser.generate(key, 5, 4))(jax.random.key(9))
drawn = np.asarray(final.integrator_state.position, np.float64)
print(json.dumps([*losses, float(drawn.mean()), float(drawn.std()), *drawn[0, 0, :4, 0].tolist()]))
