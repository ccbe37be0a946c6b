"""Executor ``engine``: jitted programs take their values from the emulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuronjax.cli import main
from tests.conftest import RunPython

ENGINE = {"NEURONJAX_EXECUTOR": "engine"}
DEFAULTS: dict[str, str | None] = {"NEURONJAX_NUMERICS": None, "NEURONJAX_LEGALITY": None}
"""What users get where they say nothing."""


def test_values_are_those_of_the_cpu(run_python: RunPython) -> None:
    code = """
        import jax, jax.numpy as jnp, numpy as np
        from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
        from neuronjax import program_text

        def f(x, w):
            y = jax.nn.softmax(x @ w)
            total, ys = jax.lax.scan(lambda c, r: (c + r.sum(), c * r), 0.0, y)
            return total, ys, jnp.argsort(y[0]), jnp.fft.fft(x[0]).real

        x = np.random.default_rng(0).standard_normal((8, 16), np.float32)
        w = np.random.default_rng(1).standard_normal((16, 24), np.float32)
        cpu = jax.devices("cpu")[0]
        want = jax.jit(f)(jax.device_put(x, cpu), jax.device_put(w, cpu))
        for got, each in zip(jax.jit(f)(x, w), want):
            np.testing.assert_allclose(got, each, rtol=1e-5, atol=1e-5)
        mesh = jax.make_mesh((8,), ("d",), (AxisType.Auto,))
        split = NamedSharding(mesh, P("d"))
        y = jax.jit(lambda x, w: (x @ w, x.sum(0)))(jax.device_put(x, split), w)
        np.testing.assert_allclose(y[0], x @ w, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(y[1], x.sum(0), rtol=1e-5, atol=1e-5)
        print(len(y[0].addressable_shards), jax.jit(lambda x: x[:0])(x).shape)
        print(program_text(lambda x: x + 1, x).splitlines()[0])
    """
    done = run_python(code, ENGINE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "8 (0, 16)",
        'program "jit__lambda" target trainium2 lnc 1 {',
    ]


@pytest.mark.parametrize("order", ["program", "dataflow", "adversarial"])
def test_runs_are_recorded_and_replayed(
    run_python: RunPython, tmp_path: Path, capsys: pytest.CaptureFixture[str], order: str
) -> None:
    code = """
        import jax, jax.numpy as jnp
        step = jax.jit(lambda x, y: jnp.tanh(x) * y)
        print(step(jnp.ones((4, 8)), 2 * jnp.ones((4, 8)))[0, 0])
    """
    environment = {"NEURONJAX_ENGINE_ORDER": order, "NEURONJAX_RECORD_TO": str(tmp_path)}
    done = run_python(code, ENGINE | environment)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*.jit__lambda.npz")
    assert main.main(["replay", str(path), "--print", "res0"]) == 0
    out = capsys.readouterr().out
    assert "results as recorded" in out
    assert "%res0 : float32[4, 8]" in out
    assert "1.523" in out
    assert main.main(["replay", str(path), "--to", "2"]) == 0
    assert "2 instructions of 1 ranks" in capsys.readouterr().out
    assert main.main(["replay", str(path), "--list"]) == 0
    assert "arg0" in capsys.readouterr().out


def test_a_damaged_record_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.npz"
    path.write_bytes(b"nothing")
    assert main.main(["replay", str(path)]) == 2
    assert "cannot be read as a record" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_to(run_python: RunPython, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code = "import jax; jax.jit(lambda x: x + 1)(1.0)"
    done = run_python(code, ENGINE | {"NEURONJAX_RECORD_TO": str(tmp_path / "file" / "x")})
    assert done.returncode == 1
    assert "cannot be written to" in done.stderr


def test_an_old_core_has_no_engines_to_emulate(run_python: RunPython) -> None:
    environment = {"NEURONJAX_TARGET": "inf1.xlarge", "NEURON_LOGICAL_NC_CONFIG": None}
    done = run_python("import jax; jax.devices()", ENGINE | environment)
    assert done.returncode == 1
    assert "emulates NeuronCore-v2 and later" in done.stderr


@pytest.mark.slow
def test_a_flax_model_from_initialisation_to_a_training_step(run_python: RunPython) -> None:
    """Losses and parameters are those of the cpu, up to sums in another order."""
    code = """
        import jax, jax.numpy as jnp, numpy as np, optax
        from flax import nnx

        class Model(nnx.Module):
            def __init__(self, rngs):
                self.embed = nnx.Embed(32, 16, rngs=rngs)
                self.attention = nnx.MultiHeadAttention(2, 16, decode=False, rngs=rngs)
                self.norm = nnx.LayerNorm(16, rngs=rngs)
                self.hidden = nnx.Linear(16, 32, rngs=rngs)
                self.dropout = nnx.Dropout(0.1, rngs=rngs)
                self.head = nnx.Linear(32, 32, rngs=rngs)

            def __call__(self, tokens):
                x = self.embed(tokens)
                x = self.norm(x + self.attention(x))
                return self.head(self.dropout(nnx.gelu(self.hidden(x))))

        @nnx.jit
        def step(model, optimizer, tokens):
            def loss(model):
                logits = model(tokens[:, :-1])
                return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()
            value, gradient = nnx.value_and_grad(loss)(model)
            optimizer.update(model, gradient)
            return value

        @nnx.jit
        def created():
            return Model(nnx.Rngs(0))

        def trained():
            model = created()
            optimizer = nnx.Optimizer(model, optax.adamw(1e-2, eps=1e-3), wrt=nnx.Param)
            tokens = np.random.default_rng(0).integers(0, 32, (2, 9))
            losses = [step(model, optimizer, tokens) for _ in range(2)]
            return losses, jax.tree.leaves(nnx.state(model, nnx.Param))

        losses, parameters = trained()
        with jax.default_device(jax.devices("cpu")[0]):
            expected, wanted = trained()
        assert {x.devices().pop().platform for x in parameters} == {"neuron"}
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
        for one, other in zip(parameters, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
        print(losses[1] < losses[0])
    """
    done = run_python(code, ENGINE | DEFAULTS, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True"]
