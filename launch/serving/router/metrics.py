"""The metrics of all servers in one text, each with the number of its server as a label."""

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from launch.serving.router.replica import Replica

LABEL = "replica"


def merge_metrics(texts: Mapping[int, str], replicas: Sequence[Replica], retried: int) -> bytes:
    """The text of `/metrics`.

    Args:
      texts: by server, what its own `/metrics` say.
      replicas: all servers, of which it is told whether they are up.
      retried: requests that went to another server, as theirs had ended.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_All(texts, replicas, retried))
    return generate_latest(registry)


class _All(Collector):
    def __init__(self, texts: Mapping[int, str], replicas: Sequence[Replica], retried: int) -> None:
        self._texts, self._replicas, self._retried = texts, replicas, retried

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("neuronjax:replica_up", "Takes requests.", labels=[LABEL])
        starts = CounterMetricFamily("neuronjax:replica_restarts", "Started again.", labels=[LABEL])
        for replica in self._replicas:
            up.add_metric([str(replica.number)], replica.is_up)
            starts.add_metric([str(replica.number)], replica.restarts)
        yield up
        yield starts
        yield CounterMetricFamily(
            "neuronjax:requests_retried", "Sent to another server.", value=self._retried
        )
        families: dict[str, Metric] = {}
        for number, text in self._texts.items():
            for family in text_string_to_metric_families(text):
                kept = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                kept.samples += [
                    sample._replace(labels={**sample.labels, LABEL: str(number)})
                    for sample in family.samples
                ]
        yield from families.values()
