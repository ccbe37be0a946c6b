"""One address for several servers of a model, wherever they run:
`python -m launch.route --servers=http://a:8000,http://b:8000`.

A request goes to the server that has the least left to compute, and most of the prompt in its
cache; if that one ends before it answers, to another. `python -m launch.serve --replicas=2` starts
servers of its own instead.
"""

from urllib.parse import urlsplit

from absl import flags

from launch.program import run
from launch.serving.config import ServerConfig, split_names
from launch.serving.errors import ServingError
from launch.serving.router.replica import Replica
from launch.serving.router.serve import route
from launch.settings import define_flags, from_flags

_SERVERS = flags.DEFINE_string("servers", None, "URLs of the servers, with commas between them.")
_NAME = flags.DEFINE_string("name", "the model", "What the servers serve, for what is printed.")


def main() -> int:
    urls = split_names("servers", _SERVERS.value)
    if not urls:
        raise ServingError("--servers is missing: give URLs such as http://a:8000,http://b:8000")
    replicas = [Replica(number, _check_url(url)) for number, url in enumerate(urls)]
    return route(_NAME.value, replicas, from_flags(ServerConfig, flags.FLAGS.flag_values_dict()))


def _check_url(url: str) -> str:
    """The URL without a path. Raises ServingError for what is none."""
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole or parts.path.strip("/"):
        raise ServingError(f"--servers: {url!r} is no address of a server, such as http://a:8000")
    return f"{parts.scheme}://{parts.netloc}"


if __name__ == "__main__":
    define_flags(ServerConfig())
    run(main)
