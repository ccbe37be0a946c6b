"""What people watch of a run: a bar, metrics, samples of text, profiles of steps, a summary."""

from launch.monitoring.metrics_file import read_metrics as read_metrics
from launch.monitoring.monitor import Monitor as Monitor
from launch.monitoring.settings import MonitorSettings as MonitorSettings
