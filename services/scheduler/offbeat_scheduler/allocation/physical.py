"""From what a device and its link are to the coefficients of its time, and of the energy of its transfers.

    R   = W · log2(1 + P·h / (N0·W))      link rate, bit/s
    C2  = C_m / f                         seconds per sample and update
    C1  = (F·P_d + 2·P_m·S_d) / R         seconds per sample; without F·P_d where samples stay on the device
    C0  = 2·P_m·S_m / R                   seconds per cycle

Source: Mohammad, Sorour, arXiv 1905.01656. N0 is a density, so the noise over the bandwidth is N0·W. With its
attenuation of 7 + 2.1·log10(distance in m) dB, the default here, the published setting has the published
coefficients. That is far less than free space takes (20 dB per decade): a measured bit rate, or a measured
path loss, is better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

PATH_LOSS_AT_1M_DB = 7.0
PATH_LOSS_PER_DECADE_DB = 2.1


@dataclass(frozen=True)
class TaskSize:
    """What travels.

    Args:
        parameters: S_m, of the model.
        bits_per_parameter: P_m, on the wire.
        parameters_per_sample: S_d, by which the model grows with each sample.
        features: F, of one sample.
        bits_per_feature: P_d, on the wire.
    """

    parameters: float
    bits_per_parameter: float
    parameters_per_sample: float
    features: float
    bits_per_feature: float


@dataclass(frozen=True)
class Transfer:
    """What sending and receiving cost: seconds, or joules.

    Args:
        per_sample: of each sample, and of what the model grows by with it.
        fixed: of the model in each cycle, both ways.
    """

    per_sample: float
    fixed: float


def watts(dbm: float) -> float:
    """The power of a level in dBm: 10^(dBm/10) milliwatts."""
    return 10 ** (dbm / 10) / 1000


def path_loss_db(
    distance_m: float,
    at_1m_db: float = PATH_LOSS_AT_1M_DB,
    per_decade_db: float = PATH_LOSS_PER_DECADE_DB,
) -> float:
    """Log-distance attenuation: so many dB at 1 m, and so many more each time the distance is tenfold."""
    return at_1m_db + per_decade_db * math.log10(distance_m)


def link_rate(
    bandwidth_hz: float, transmit_dbm: float, noise_dbm_per_hz: float, path_loss_db: float
) -> float:
    """Shannon's rate R in bit/s of a link with white noise, the same both ways."""
    noise_dbm = noise_dbm_per_hz + 10 * math.log10(bandwidth_hz)
    ratio_log2 = (transmit_dbm - path_loss_db - noise_dbm) / 10 * math.log2(10)
    return bandwidth_hz * float(np.logaddexp2(0.0, ratio_log2))


def compute_s(operations_per_sample: float, cpu_hz: float) -> float:
    """C2: seconds per sample and update of a processor that does `cpu_hz` operations per second."""
    return operations_per_sample / cpu_hz


def transfer_s(task: TaskSize, bit_rate: float, *, samples_travel: bool) -> Transfer:
    """C1 and C0 in seconds, on a link of `bit_rate` bit/s each way.

    Args:
        samples_travel: parallelized; else each device has its samples (federated).
    """
    return _transfer(task, bit_rate, samples_travel, receiving=1.0, sending=1.0)


def transfer_j(
    task: TaskSize, bit_rate: float, *, samples_travel: bool, receive_w: float, transmit_w: float
) -> Transfer:
    """G1 and G0 in joules: so many watts the device's radio draws while it receives, and while it sends."""
    return _transfer(task, bit_rate, samples_travel, receiving=receive_w, sending=transmit_w)


def _transfer(
    task: TaskSize, bit_rate: float, samples_travel: bool, *, receiving: float, sending: float
) -> Transfer:
    """By what a second of receiving and one of sending cost. Samples only come; the model comes and goes."""
    sample_bits = task.features * task.bits_per_feature if samples_travel else 0.0
    growth_bits = task.parameters_per_sample * task.bits_per_parameter
    model_bits = task.parameters * task.bits_per_parameter
    return Transfer(
        per_sample=(receiving * (sample_bits + growth_bits) + sending * growth_bits) / bit_rate,
        fixed=(receiving + sending) * model_bits / bit_rate,
    )
