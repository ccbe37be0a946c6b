# package: numpyro
"""NumPyro: variational inference of a linear regression, and a few steps of NUTS."""

import json

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

inputs = jax.random.normal(jax.random.key(0), (64, 3))
outputs = inputs @ jnp.array([1.0, -2.0, 0.5]) + 0.1 * jax.random.normal(jax.random.key(1), (64,))


def model(inputs, outputs=None):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([3]))
    with numpyro.plate("rows", len(inputs)):
        numpyro.sample("outputs", dist.Normal(inputs @ weights, 0.1), obs=outputs)


inference = SVI(model, AutoNormal(model), numpyro.optim.Adam(0.05), Trace_ELBO())
fitted = inference.run(jax.random.key(2), 300, inputs, outputs, progress_bar=False)
chain = MCMC(NUTS(model), num_warmup=100, num_samples=200, progress_bar=False)
chain.run(jax.random.key(3), inputs, outputs)
means = [fitted.params["weights_auto_loc"], chain.get_samples()["weights"].mean(0)]
print(json.dumps([round(float(value), 2) for mean in means for value in mean]))
