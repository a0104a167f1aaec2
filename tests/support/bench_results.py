"""Results of the benchmark as a run makes them."""

from pathlib import Path

from toymq_bench import machine
from toymq_bench.result import Result

FACTS = machine.facts(Path())


def pub(*rates: float, cpu_us: float = 2.0, client_cores: float = 0.1) -> Result:
    runs = [{"publishes_per_s": rate, "broker_cpu_us": cpu_us, "client_cores": client_cores} for rate in rates]
    return Result("pub", {"producers": 16}, "fsync always", runs)
