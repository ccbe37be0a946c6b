"""Checkpoints of a run: written atomically in the background, and readable onto any mesh."""

from launch.checkpoints.directory import RunLock as RunLock
from launch.checkpoints.directory import run_directory as run_directory
from launch.checkpoints.layers import ORDER as ORDER
from launch.checkpoints.reader import AVERAGE as AVERAGE
from launch.checkpoints.reader import PARAMETERS as PARAMETERS
from launch.checkpoints.reader import abstract as abstract
from launch.checkpoints.reader import newest as newest
from launch.checkpoints.reader import read_record as read_record
from launch.checkpoints.reader import restore as restore
from launch.checkpoints.reader import sound_steps as sound_steps
from launch.checkpoints.reader import steps as steps
from launch.checkpoints.retention import Retention as Retention
from launch.checkpoints.state import items as items
from launch.checkpoints.state import restore_state as restore_state
from launch.checkpoints.writer import CheckpointWriter as CheckpointWriter
