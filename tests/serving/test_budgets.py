"""Tokens that a client may have within a minute."""

import urllib.error
import urllib.request

import pytest

from launch.serving.errors import CrowdedError
from launch.serving.http.budgets import Budgets
from launch.serving.runner.runner import Runner
from tests.serving.http_server import running
from tests.serving.test_http import COMPLETIONS


def test_a_budget_fills_up_within_a_minute() -> None:
    now = 0.0
    budgets = Budgets(600, lambda: now)
    budgets.spend("a", 599)
    budgets.check("a")
    budgets.spend("a", 101)
    with pytest.raises(CrowdedError, match=r"has had its 600 tokens .* in 11 s") as refused:
        budgets.check("a")
    budgets.check("b")
    now = float(refused.value.seconds)
    budgets.check("a")
    now += 60
    budgets.spend("a", 600)
    with pytest.raises(CrowdedError, match="in 1 s"):
        budgets.check("a")
    Budgets(None).check("a")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_who_has_spent_it_is_told_when_to_come_again(byte_runner: Runner, stream: bool) -> None:
    """Prompts and answers count; others go on."""
    body = {"prompt": "abcd", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    with running(byte_runner, tokens_per_minute=1) as server:
        mine, other = ({"Authorization": f"Bearer {key}"} for key in ("mine", "other"))
        assert server.ask(COMPLETIONS, {**body, "stream": stream}, headers=mine)[0] == 200
        request = urllib.request.Request(
            f"{server.url}{COMPLETIONS}",
            data=b'{"prompt": "a", "stream": %s}' % str(stream).lower().encode(),
            headers={"Content-Type": "application/json", **mine},
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=60)
        with refused.value as error:
            assert error.code == 429
            assert 500 < int(error.headers["Retry-After"]) <= 12 * 60
        assert server.ask(COMPLETIONS, body, headers=other)[0] == 200
