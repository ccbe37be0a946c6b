"""What a server's process is told when it is started."""

from dataclasses import dataclass

from launch.serving.config import ServerConfig
from launch.serving.model_choice import ModelChoice


@dataclass(frozen=True)
class ReplicaJob:
    """A model, and the Unix socket on which it is to be served. It can be pickled."""

    choice: ModelChoice
    config: ServerConfig
