"""Numbers as a file may give them, each with its unit: what is refused says what it is and what to give."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BeforeValidator

MOST = 1e300
MOST_DB = 300.0


def _number(value: Any, remedy: str) -> float:
    if isinstance(value, str):  # YAML 1.1 reads 2.4e9 as a text: its exponents need a sign
        try:
            value = float(value)
        except ValueError:
            raise ValueError(f"is no number; {remedy}") from None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"is no number; {remedy}")
    if not abs(value) <= MOST:
        raise ValueError(f"is not finite; {remedy}")
    return value


def _checked_above_zero(value: Any, remedy: str) -> float:
    number = _number(value, remedy)
    if number <= 0:
        raise ValueError(f"is {'negative' if number < 0 else 'zero'}; {remedy}")
    return number


def above_zero(unit: str) -> BeforeValidator:
    return BeforeValidator(lambda value: _checked_above_zero(value, f"give {unit} above 0"))


def not_negative(unit: str) -> BeforeValidator:
    remedy = f"give 0 or more {unit}"

    def check(value: Any) -> float:
        number = _number(value, remedy)
        if number < 0:
            raise ValueError(f"is negative; {remedy}")
        return number

    return BeforeValidator(check)


def level(unit: str) -> BeforeValidator:
    """A logarithmic quantity."""
    remedy = f"give {unit} from -{MOST_DB:g} to {MOST_DB:g}"

    def check(value: Any) -> float:
        number = _number(value, remedy)
        if abs(number) > MOST_DB:
            raise ValueError(f"is out of range; {remedy}")
        return number

    return BeforeValidator(check)


def whole(unit: str, most: int) -> BeforeValidator:
    """From 1 to `most`."""
    remedy = f"give a whole number of {unit}, from 1 to {most}"

    def check(value: Any) -> int:
        number = _checked_above_zero(value, remedy)
        if number != math.floor(number):
            raise ValueError(f"is not whole; {remedy}")
        if number > most:
            raise ValueError(f"is too many; {remedy}")
        return int(number)

    return BeforeValidator(check)


Seconds = Annotated[float, not_negative("seconds")]
SomeSeconds = Annotated[float, above_zero("seconds")]
Joules = Annotated[float, not_negative("joules")]
SomeJoules = Annotated[float, above_zero("joules")]
Watts = Annotated[float, not_negative("watts")]
SomeWatts = Annotated[float, above_zero("watts")]
Hertz = Annotated[float, above_zero("hertz")]
Metres = Annotated[float, above_zero("metres")]
BitRate = Annotated[float, above_zero("bit/s")]
Bits = Annotated[float, above_zero("bits")]
DBm = Annotated[float, level("dBm")]
DBmPerHertz = Annotated[float, level("dBm/Hz")]
Decibels = Annotated[float, level("dB")]
