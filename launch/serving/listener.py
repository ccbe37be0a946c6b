"""The socket that clients come to."""

import socket

from launch.serving.errors import ServingError


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises ServingError if the port is taken or the address is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)  # who comes before the server runs waits for it
    except OverflowError as error:
        listener.close()
        raise ServingError(f"--port={port}: ports lie between 0 and 65535") from error
    except OSError as error:
        listener.close()
        raise ServingError(
            f"cannot listen on {host}:{port}: {error.strerror or error}. Give another --port, or "
            "stop the program that uses it."
        ) from error
    return listener
