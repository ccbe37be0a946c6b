"""The socket that clients come to."""

import socket

from launch.serving.config import ServerConfig
from launch.serving.errors import ServingError

_WAITING = 2048
"""Connections that wait, of clients that come before the server runs."""


def bind(config: ServerConfig) -> socket.socket:
    """A socket that listens. Raises ServingError if the port is taken or the address is none."""
    host, port = config.host, config.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family if config.uds is None else socket.AF_UNIX)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port) if config.uds is None else config.uds)
        listener.listen(_WAITING)
    except OverflowError as error:
        listener.close()
        raise ServingError(f"--port={port}: ports lie between 0 and 65535") from error
    except OSError as error:
        listener.close()
        where, remedy = f"{host}:{port}", "Give another --port, or stop the program that uses it."
        if config.uds is not None:
            where, remedy = config.uds, "Give another --uds, or remove a file that is left there."
        raise ServingError(
            f"cannot listen on {where}: {error.strerror or error}. {remedy}"
        ) from error
    return listener


def address(listener: socket.socket, config: ServerConfig) -> str:
    """The URL of OpenAI's API, as a server prints it."""
    if config.uds is not None:
        return f"unix:{config.uds}"
    host, port = listener.getsockname()[:2]
    return f"{'http' if config.ssl_certfile is None else 'https'}://{host}:{port}/v1"
