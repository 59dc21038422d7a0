"""One run on this device: the model, its data, and everything that a local update, a cut and a merge do.

No thread, no network, no clock: `training.py` calls it at batch boundaries and passes
the time in.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from offbeat.v1 import common_pb2 as pb
from offbeat.v1 import parameter_server_pb2 as ps
from offbeat.v1 import scheduler_pb2 as sc
from offbeat_core.averages import SmoothedMean
from offbeat_core.errors import OffbeatError
from offbeat_core.manifest import Manifest
from offbeat_worker import tasks, trigger
from offbeat_worker.accumulator import Accumulator
from offbeat_worker.batches import Order, fetcher
from offbeat_worker.flat import FlatModel
from offbeat_worker.memory import Fit
from offbeat_worker.noise import GradientNoise, backward
from offbeat_worker.sgd import FlatSGD
from offbeat_worker.speed import StepTime
from offbeat_worker.stopwatch import Stopwatch
from offbeat_worker.supply import Given, Supply, Wanted
from offbeat_worker.tasks.check import move

log = logging.getLogger(__name__)

LOSS_WEIGHT = 0.05
"""Of a new loss in the smoothed one: it remembers about the last twenty batches."""


@dataclass(frozen=True)
class Site:
    """What this device's configuration gives every run."""

    shard: int
    shards: int
    folder: Path
    task_paths: Sequence[Path]
    device: torch.device
    max_batch: int = 0  # samples at a time at most; 0: no bound is known


@dataclass(frozen=True)
class Cut:
    """An update on its way out."""

    run_id: str
    sequence: int
    base_version: int
    generation: int
    steps: int
    samples: int
    train_loss: float
    manifest_digest: str
    vector: np.ndarray = field(repr=False)  # float32, (elements,): U, then buffers; untouched until the reply
    started_s: float  # monotonic, when the cut began
    overlap: bool
    shard_samples: int = 0  # that this device holds, or was given to train on
    once: bool = False  # the only one in its generation


@dataclass(frozen=True)
class Fresh:
    """The fresh model that answers a commit, or (sequence 0) one that was pulled."""

    run_id: str
    sequence: int
    outcome: int  # CommitAck.Outcome; 0 for a pull
    reason: str
    version: int
    vector: np.ndarray = field(repr=False)


def build(site: Site, spec: pb.RunTask, seed: int) -> tuple[tasks.Task, torch.nn.Module, dict[str, str]]:
    """The task that a run names and its model, the same on each device for the same seed.

    Raises OffbeatError: unknown task, another digest than the run's, an error in the user's file.
    """
    task = tasks.load(spec.name, site.task_paths)
    if spec.digest and spec.digest != task.digest:
        raise OffbeatError(
            f"task: '{spec.name}' here has the digest {task.digest[:12]}…, the run's is {spec.digest[:12]}…",
            "give every device the same file (the hub never sends code)",
        )
    options = dict(spec.options)
    _seed_all(seed)
    return task, task.build_model(**options), options


def _seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


class LocalRun:
    """Builds model and data for a run, then trains when told.

    Args:
        parallelized: no data are loaded here: the parameter server deals them (`wish`, `give`).

    Raises OffbeatError for whatever is wrong with the task, its data or the directive.
    """

    def __init__(
        self,
        site: Site,
        run_id: str,
        spec: pb.RunTask,
        seed: int,
        batch: int = 32,
        *,
        parallelized: bool = False,
    ) -> None:
        self.run_id = run_id
        self._task, module, self._options = build(site, spec, seed)
        self._fit = Fit(site.max_batch)
        self._supply = Supply(run_id) if parallelized else None
        self._tried = False  # on a batch of what was dealt
        self._fetch: Callable[[np.ndarray], Any] | None = None
        if parallelized:
            self._order = Order.empty(seed, site.shard)
        else:
            dataset = self._task.load_data(
                site.shard, site.shards, "train", site.folder, seed, spec.partition or "iid", **self._options
            )
            self._check(module, dataset, batch or 32)
            self._order = Order(len(dataset), seed, site.shard)
            self._fetch = fetcher(dataset)
        self.flat = FlatModel(module, site.device)
        self.flat.module.train()
        self._sgd = FlatSGD(self.flat)
        self._noise = GradientNoise()
        self._accumulator: Accumulator | None = None
        self._trigger = trigger.Trigger()
        self._device = site.device
        # From here on chance differs from device to device (dropout, augmentation).
        _seed_all(int(np.random.default_rng((seed, site.shard)).integers(2**32)))

        self.directive = pb.WorkerDirective()
        self.watch = Stopwatch()
        self.version = 0
        self.sequence = 0
        self.steps = 0
        self.samples = 0
        self.commits = 0  # acknowledged
        self.refused = 0
        self.dropped_steps = 0
        self._batch = batch or 32  # the run's
        self._share = 1.0  # of a usual local update's samples, in the last one
        self._again = False  # the last one was computed again, with fewer samples
        self.halved = False  # it went through its batch in two halves
        self._committed_in: int | None = None  # the generation in which this device has done its one commit
        self._passes_at_cut = 0
        self._hold_of_cut = 0.0
        self._loss = SmoothedMean(LOSS_WEIGHT)
        self._diverged = False  # the last step's loss was no number
        self._speed = StepTime()
        self._hold_s = SmoothedMean()
        self._said: set[str] = set()

    def _check(self, module: torch.nn.Module, dataset: Any, batch: int) -> None:
        """Try the task on a batch, of fewer samples where memory runs out. Raises OffbeatError."""
        self._fit.within(
            batch,
            lambda samples: tasks.check_batch(
                self._task, module, dataset, batch=samples, options=self._options
            ),
            clear=lambda: None,
        )

    # ---- model ------------------------------------------------------------------

    @property
    def manifest(self) -> Manifest:
        return self.flat.manifest

    def initial(self) -> np.ndarray:
        """The model as built, for seeding: float32 of shape (elements,)."""
        return self.flat.vector.detach().cpu().numpy().copy()

    def load(self, vector: np.ndarray, version: int) -> None:
        """Start from this model."""
        self.flat.load(torch.from_numpy(vector))
        self._accumulator = Accumulator(self.flat)
        self.version = version

    @property
    def loaded(self) -> bool:
        return self._accumulator is not None

    # ---- training ---------------------------------------------------------------

    def follow(self, directive: pb.WorkerDirective, received_s: float, now_s: float) -> None:
        """A directive takes effect, at once. Grids count from `received_s` - elapsed."""
        if directive.batch == 0:
            raise OffbeatError("directive: batch: 0 is not positive", "is the scheduler of this version?")
        if self._supply is not None:
            self._follow_supply(self._supply, directive)
        elif directive.samples:
            self._order.choose(directive.samples)
        else:
            self._order.draw(directive.draw, directive.generation)
        self._order.even = directive.trigger.HasField("passes")
        self._trigger.set(_rule(directive.trigger, received_s), now_s)
        self._loaded.max_lone_steps = directive.max_lone_steps
        before, self.directive = self.batch, directive
        self._resized(before)
        if self._order.size < self.batch and self.supplied:
            self._say_once(
                "small", f"{self._order.size} samples are fewer than a batch of {self.batch}: they are one"
            )

    @property
    def rests(self) -> bool:
        """Has this device done its one commit of the generation in force?"""
        return self._has_done(self.directive)

    def _has_done(self, directive: pb.WorkerDirective) -> bool:
        return directive.once and directive.generation == self._committed_in

    # ---- samples that are dealt to it ---------------------------------------------

    @property
    def supplied(self) -> bool:
        """Are there samples to train on? Not while those of a generation are on their way."""
        return self._fetch is not None

    def _follow_supply(self, supply: Supply, directive: pb.WorkerDirective) -> None:
        if directive.draw == 0:
            raise OffbeatError("directive: draw: no samples are dealt", "is the scheduler of this version?")
        if not self._has_done(directive) and supply.follow(directive.generation, directive.draw):
            self._fetch = None

    def wish(self) -> Wanted | None:
        """What is to be fetched now; says so once."""
        return self._supply.ask() if self._supply is not None else None

    def give(self, given: Given) -> None:
        """Samples have come; others than those that it waits for are dropped.

        Raises OffbeatError where the task can't train on them.
        """
        dataset = self._supply.take(given) if self._supply is not None else None
        if dataset is None:
            return
        if not self._tried:
            self._check(self.flat.module, dataset, self._batch)
            self._tried = True
        self._order.renew(len(dataset))
        self._fetch = fetcher(dataset)

    def release(self) -> None:
        """Let go of the samples that were dealt: it rests."""
        if self._supply is not None:
            self._supply.drop()
            self._fetch = None

    @property
    def batch(self) -> int:
        """Samples of a usual local update: the directive's, as far as they fit this device."""
        return self._fit.of(self.directive.batch)

    @property
    def scale(self) -> float:
        """Samples of the last local update in those of one with the run's batch: emulated slowness goes with
        them, as time does on most devices."""
        return self.batch / self._batch * self._share

    def step(self) -> None:
        """One local update. Where memory runs out, of fewer samples: the next one begins with the others."""
        directive, before = self.directive, self.batch
        loss, samples = self._fit.within(directive.batch, self._compute, self._sgd.drop)
        self._again = self.batch != before
        self._resized(before)
        self._order.advance(samples)
        self._sgd.step(directive.learning_rate, directive.momentum, directive.weight_decay)
        value = loss.item()
        finite = math.isfinite(value)
        self._diverged = not finite
        if finite:
            self._loss.add(value)
        else:
            self._say_once("nan", f"the loss of step {self.steps + 1} is {value}")
        self._loaded.stepped(samples, value, finite=finite)
        self.steps += 1
        self.samples += samples

    def _compute(self, batch: int) -> tuple[torch.Tensor, int]:
        """The gradient of the next samples: their loss, and how many they are."""
        self._order.most = self._fit.bound
        self._share = self._order.share(batch)
        indices = self._order.look(batch)
        noise = self._noise if self.directive.gradient_noise else None
        self.halved = noise is not None and noise.halves(len(indices))
        return backward(self.flat, self._loss_of, indices, noise), len(indices)

    def _loss_of(self, indices: np.ndarray) -> torch.Tensor:
        assert self._fetch is not None, "what is dealt has not come"
        items = self._fetch(indices)
        if self._device.type != "cpu":
            items = move(items, self._device)
        loss, _ = self._task.loss_and_metric(self.flat.module, items, **self._options)
        return loss

    def _resized(self, before: int) -> None:
        """The batch was `before`; 0: there was none."""
        if before and self.batch != before:
            self._speed.resize(self.batch / before)

    def timed(self, step_s: float) -> None:
        """The last update took so long, pacing included. One at a pass's end, of fewer samples, says
        nothing of the others, nor does one that was computed twice, or in two halves."""
        usual = (self._share >= 1 or self._order.even) and not (self._again or self.halved)
        if usual or not self._speed.value:
            self._speed.add(step_s)

    # ---- committing ---------------------------------------------------------------

    def due(self, now_s: float) -> bool:
        """Should a commit be cut at this batch boundary?"""
        accumulator = self._loaded
        return accumulator.in_flight is None and self._trigger.due(
            now_s, accumulator.pending.steps, self._order.passes - self._passes_at_cut
        )

    @property
    def in_flight(self) -> bool:
        return self._accumulator is not None and self._accumulator.in_flight is not None

    @property
    def pending_steps(self) -> int:
        """Local updates that no commit holds yet."""
        return self._accumulator.pending.steps if self._accumulator else 0

    def cut(self, now_s: float) -> Cut:
        """Take the accumulated update out."""
        accumulator = self._loaded
        vector = accumulator.cut()
        sent = accumulator.in_flight
        assert sent is not None
        self._trigger.served(now_s)
        self._passes_at_cut = self._order.passes
        self.sequence += 1
        if self.directive.once:
            self._committed_in = self.directive.generation
        return Cut(
            run_id=self.run_id,
            sequence=self.sequence,
            base_version=self.version,
            generation=self.directive.generation,
            steps=sent.steps,
            samples=sent.samples,
            train_loss=sent.mean_loss or self._loss.value,
            manifest_digest=self.manifest.digest,
            vector=vector.numpy(),
            started_s=now_s,
            overlap=self.directive.overlap and not self.directive.once,
            shard_samples=self._order.size,
            once=self.directive.once,
        )

    def take(self, fresh: Fresh) -> None:
        """A fresh model arrived: merge what was done meanwhile, or drop what was refused."""
        accumulator = self._loaded
        if fresh.sequence != (self.sequence if accumulator.in_flight else 0):
            return  # pulled, or an answer to something else, while a commit is on its way: that one will do
        vector = torch.from_numpy(fresh.vector)
        shrunk = accumulator.shrunk
        if fresh.outcome == ps.CommitAck.REFUSED:
            dropped = accumulator.replace(vector)
            self._sgd.forget()
            self.refused += 1
            self.dropped_steps += dropped
            log.warning("commit %d was refused, %d steps dropped: %s", fresh.sequence, dropped, fresh.reason)
        else:
            accumulator.merge(vector)
            self.commits += fresh.sequence > 0
        if accumulator.shrunk > shrunk:
            log.warning(
                "more than %d steps without a fresh model: their sum was scaled down to so many",
                accumulator.max_lone_steps,
            )
        self.version = fresh.version

    def held(self, seconds: float, *, cutting: bool) -> None:
        """A cut or a merge held the training thread for so long."""
        if cutting:
            self._hold_of_cut = seconds
        else:
            self._hold_s.add(self._hold_of_cut + seconds)

    # ---- report ---------------------------------------------------------------------

    def report(self) -> sc.WorkerReport:
        """Figures of the run so far. Any thread may ask."""
        accumulator = self._accumulator
        return sc.WorkerReport(
            run_id=self.run_id,
            steps=self.steps,
            samples=self.samples,
            commits=self.commits,
            # What was smoothed before says nothing of a model whose loss is no number now.
            train_loss=math.nan if self._diverged else self._loss.value,
            step_s=self._speed.value,
            hold_s=self._hold_s.value,
            time=self.watch.to_proto(),
            revision=self.directive.revision,
            steps_since_pull=accumulator.steps_since_pull if accumulator else 0,
            shard_samples=self._order.held,
            gradient_square=self._noise.square,
            gradient_variance=self._noise.variance,
            gradient_pairs=self._noise.pairs,
            max_batch=self._fit.bound,
        )

    @property
    def _loaded(self) -> Accumulator:
        if self._accumulator is None:
            raise RuntimeError("no model was loaded")
        return self._accumulator

    def _say_once(self, key: str, text: str) -> None:
        if key not in self._said:
            self._said.add(key)
            log.warning("%s", text)


def _rule(message: pb.Trigger, received_s: float) -> trigger.Rule:
    """Raises OffbeatError for a trigger that never fires."""
    kind: Any = message.WhichOneof("kind")
    if kind == "grid" and message.grid.interval_s > 0:
        return trigger.Grid(received_s - message.grid.elapsed_s, message.grid.interval_s)
    if kind == "steps" and message.steps > 0:
        return trigger.Steps(message.steps)
    if kind == "passes" and message.passes > 0:
        return trigger.Passes(message.passes)
    raise OffbeatError(
        f"directive: trigger: {kind or 'none'} never commits", "is the scheduler of this version?"
    )
