"""The simulator: a run in virtual time, driven by the very objects that decide in the live services.

    from offbeat_cli.simulator import PowerLaw, VirtualDevice, simulate
    result = simulate(run, [VirtualDevice("slow", step_s=0.3), VirtualDevice("fast", step_s=0.1)], workload)

The synchronization model (`offbeat_scheduler`), the server's rules, fold and gate (`offbeat_ps`)
and the worker's trigger (`offbeat_worker`) are the real ones; devices, links and clocks are virtual.
What a local update does to the model is the `Workload`'s matter. Apart from the tests, this is the
only place that imports more than one service.
"""

from offbeat_cli.simulator.devices import VirtualDevice
from offbeat_cli.simulator.driver import Simulation, simulate
from offbeat_cli.simulator.result import Evaluation, Result, time_to_loss
from offbeat_cli.simulator.workloads import Perceptron, PowerLaw, Quadratic, Workload

__all__ = [
    "Evaluation",
    "Perceptron",
    "PowerLaw",
    "Quadratic",
    "Result",
    "Simulation",
    "VirtualDevice",
    "Workload",
    "simulate",
    "time_to_loss",
]
