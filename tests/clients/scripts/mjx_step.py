# package: mujoco-mjx
"""MJX: a pendulum falls. MJX knows platforms by name; `impl="jax"` asks for its own code in JAX."""

import json

import jax
import mujoco
from mujoco import mjx

PENDULUM = """
<mujoco><worldbody><body pos="0 0 1"><joint type="hinge" axis="0 1 0" pos="0 0 0.5"/>
<geom type="capsule" size="0.05" fromto="0 0 0.5 0.3 0 0"/></body></worldbody></mujoco>
"""
host = mujoco.MjModel.from_xml_string(PENDULUM)
model = mjx.put_model(host, impl="jax")
state = mjx.make_data(host, impl="jax")
step = jax.jit(lambda state: jax.lax.fori_loop(0, 50, lambda _, s: mjx.step(model, s), state))
angles = []
for _ in range(4):
    state = step(state)
    angles.append(float(state.qpos[0]))
print(json.dumps(angles))
