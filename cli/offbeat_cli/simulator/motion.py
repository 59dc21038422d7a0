"""What devices do in virtual time, and their commits on the way to the server and back.

At a device's batch boundary, in this order: a fresh model that has arrived is taken over;
one that was told to rest, or has made its commit of the round, rests; if a commit is due
and none is in flight, it is cut and sent; with overlap training goes on, without it the
device stands still until the answer. One that is dealt samples waits for them before its
next local update. The server serves one commit after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from offbeat_cli.simulator.devices import Directive, Part, Trainer, Transfer
from offbeat_cli.simulator.hub import Answer, Hub
from offbeat_cli.simulator.workloads import Workload
from offbeat_core.clock import VirtualClock

SHORTEST_S = 1e-6
"""What a commit takes at least, in what the scheduler hears: 0 would mean that it is not yet known."""


class Motion:
    """Moves the devices.

    Args:
        batch: samples of a local update, where a device is given no other number.
        server_s: seconds that the server is busy with one commit.
        told: the newest directive for a device; it travels with a commit's answer.
        dealt: the indices of the samples that a directive deals to a device.
        moved: called after each event at the server.
        left: called when a device has left, or gets no model any more.

    Attributes:
        commits: that arrived at the server.
        vectors_sent: updates to the server and models from it.
    """

    server: Hub  # set before anything moves

    def __init__(
        self,
        clock: VirtualClock,
        workload: Workload,
        trainers: Mapping[str, Trainer],
        *,
        batch: int,
        server_s: float,
        told: Callable[[str], Directive | None],
        dealt: Callable[[str, Directive], np.ndarray],
        moved: Callable[[], None],
        left: Callable[[Trainer], None],
    ) -> None:
        self._clock = clock
        self._workload = workload
        self._trainers = trainers
        self._batch = batch
        self._server_s = server_s
        self._told, self._dealt, self._moved, self._left = told, dealt, moved, left
        self._server_free_s = 0.0
        self.commits = 0
        self.vectors_sent = 0

    # ---- coming and going ----------------------------------------------------------------

    def begin(self, trainer: Trainer) -> None:
        """It has its directive; it loads the model and trains."""
        now = self._clock.now()
        trainer.load(self.server.pull(trainer.device.name, now), now)
        self.vectors_sent += 1
        self._moved()
        self.go_on(trainer)

    def leave(self, trainer: Trainer) -> None:
        """It is not there any more, and says nothing."""
        if trainer.present:
            trainer.present = False
            trainer.turn(None, self._clock.now())
            self._left(trainer)

    # ---- training ------------------------------------------------------------------------

    def go_on(self, trainer: Trainer) -> None:
        """The next local update, or a rest."""
        now = self._clock.now()
        trainer.idle = not trainer.may_train
        if trainer.idle:
            trainer.turn(Part.WAIT, now)
            return
        if trainer.unsupplied:
            trainer.turn(Part.TRAVEL, now)
            trainer.awaits_samples = True
            self._fetch(trainer)
            return
        trainer.turn(Part.COMPUTE, now)
        assert trainer.directive is not None
        if trainer.allotted is not trainer.directive:
            trainer.allotted = trainer.directive
            self._workload.allot(trainer.index, trainer.directive)
        batch = trainer.directive.batch
        share = self._workload.share(trainer.index, batch)
        halved = self._workload.halves(trainer.index, batch)
        seconds = trainer.vary_step(trainer.device.step_at(now, batch / self._batch * share, halved=halved))
        usual = (share >= 1 or trainer.directive.even) and not halved
        self._clock.call_later(seconds, lambda: self._stepped(trainer, seconds, batch, usual))

    def _fetch(self, trainer: Trainer) -> None:
        """It has let go of its samples; those that it is dealt are on their way."""
        directive = trainer.directive
        assert directive is not None
        if trainer.transfer is not None:
            return
        seconds = trainer.vary_transfer(directive.dealt)
        transfer = trainer.transfer = Transfer(directive, self._clock.now(), seconds)
        self._clock.call_later(seconds, lambda: self._supplied(trainer, transfer))

    def _supplied(self, trainer: Trainer, transfer: Transfer) -> None:
        if not trainer.present or trainer.transfer is not transfer:
            return
        trainer.end_transfer(self._clock.now())
        trainer.supplied_for = transfer.directive.generation
        self._workload.give(trainer.index, self._dealt(trainer.device.name, transfer.directive))
        if trainer.awaits_samples:
            trainer.awaits_samples = False
            self.go_on(trainer)

    def _stepped(self, trainer: Trainer, seconds: float, batch: int, usual: bool) -> None:
        if not trainer.present:
            return
        now = self._clock.now()
        done = self._workload.step(trainer.index, trainer.values, now - trainer.base_at_s, batch)
        trainer.steps += 1
        trainer.samples += done.samples
        trainer.passes = done.passes
        trainer.pending_steps += 1
        trainer.pending_samples += done.samples
        if usual or not trainer.step_time.value:
            trainer.step_time.add(seconds)  # a smaller one at a pass's end says nothing of the others
        if math.isfinite(done.loss):
            trainer.train_loss.add(done.loss)
        self._boundary(trainer)

    def _boundary(self, trainer: Trainer) -> None:
        half_s = trainer.device.hold_s / 2
        held_s = 0.0
        if trainer.arrived is not None:
            self._merge(trainer)
            held_s += half_s
        cuts = trainer.due(self._clock.now()) and trainer.may_train
        if cuts:
            held_s += half_s
        if held_s:
            trainer.turn(Part.HOLD, self._clock.now())
            self._clock.call_later(held_s, lambda: self._after(trainer, cuts))
        else:
            self._after(trainer, cuts)

    def _after(self, trainer: Trainer, cuts: bool) -> None:
        """What held the training thread is over."""
        if not trainer.present:
            return
        if cuts and self._send(trainer):
            return
        self.go_on(trainer)

    # ---- a commit, there and back ------------------------------------------------------------

    def _send(self, trainer: Trainer) -> bool:
        """Cut and send. True: the device stands still until the answer comes."""
        now = self._clock.now()
        assert trainer.directive is not None
        base, generation = trainer.base_version, trainer.directive.generation
        update, steps, samples = trainer.cut(now)
        up_s, down_s = trainer.vary_travel()
        trainer.way_back_s = down_s
        self.vectors_sent += 1
        self._clock.call_later(up_s, lambda: self._arrive(trainer, update, base, steps, samples, generation))
        if trainer.directive.overlap:
            return False
        trainer.standing = True
        trainer.turn(Part.TRAVEL, now)
        return True

    def _arrive(
        self, trainer: Trainer, update: np.ndarray, base: int, steps: int, samples: int, generation: int
    ) -> None:
        """At the server: it serves one commit after the other."""
        start_s = max(self._clock.now(), self._server_free_s)
        self._server_free_s = start_s + self._server_s
        self._clock.call_at(
            self._server_free_s,
            lambda: self._commit(trainer, update, base, steps, samples, generation),
        )

    def _commit(
        self, trainer: Trainer, update: np.ndarray, base: int, steps: int, samples: int, generation: int
    ) -> None:
        self.commits += 1
        now = self._clock.now()
        if trainer.standing and trainer.present:
            trainer.turn(Part.WAIT, now)  # held by the gate, if only for no time
        self.server.tick(now)
        name = trainer.device.name
        trainer.arrived_s = now
        self.server.commit(
            name,
            update,
            base,
            steps,
            samples,
            now,
            generation=generation,
            shard_samples=self._workload.pass_samples(trainer.index),
        )
        self._moved()

    def answered(self, answer: Answer) -> None:
        trainer = self._trainers[answer.worker]
        if not trainer.present:
            return
        if answer.snapshot is None:
            # Quarantined: on a worker the run fails here, and it is not counted any more.
            self.leave(trainer)
            return
        if trainer.standing:
            trainer.turn(Part.TRAVEL, self._clock.now())
        self.vectors_sent += 1
        trainer.held_s = self._clock.now() - trainer.arrived_s
        told = self._told(answer.worker)
        self._clock.call_later(trainer.way_back_s, lambda: self._back(trainer, answer, told))

    def _back(self, trainer: Trainer, answer: Answer, told: Directive | None) -> None:
        """The answer is at the device, and with it the directive that held when it left."""
        if not trainer.present:
            return
        now = self._clock.now()
        assert answer.snapshot is not None
        if told is not None and told is self._told(answer.worker):
            self.follow(trainer, told)
        trainer.arrived = (answer.snapshot, answer.at_s, answer.refused)
        trainer.commit_time.add(max(now - trainer.cut_s - trainer.held_s, SHORTEST_S))
        trainer.commits_timed += 1
        if trainer.standing or trainer.idle:
            trainer.standing = trainer.idle = False
            half_s = trainer.device.hold_s / 2
            self._merge(trainer)
            trainer.turn(Part.HOLD, now)
            self._clock.call_later(half_s, lambda: self._after(trainer, False))

    def _merge(self, trainer: Trainer) -> None:
        if trainer.merge():
            self._workload.forget(trainer.index)

    # ---- directives --------------------------------------------------------------------------

    def follow(self, trainer: Trainer, directive: Directive) -> None:
        """A directive has arrived."""
        if not trainer.present or trainer.directive is directive:
            return
        trainer.follow(directive, self._clock.now())
        if trainer.transfer is not None and trainer.unsupplied_by(trainer.transfer):
            self._redirect(trainer)
        if trainer.standing and trainer.may_train and trainer.unsupplied:
            self._fetch(trainer)  # while its commit is on the way
        if not (trainer.idle and trainer.may_train):
            return
        if trainer.in_flight:
            return  # the fresh model is on its way
        if self.server.store.version <= trainer.base_version:
            self.go_on(trainer)
            return
        # The model that it rested on is old: it pulls first.
        trainer.idle = False
        now = self._clock.now()
        trainer.turn(Part.TRAVEL, now)
        trainer.arrived = (self.server.pull(trainer.device.name, now), now, False)
        self.vectors_sent += 1
        self._moved()
        self._clock.call_later(trainer.device.commit_s / 2, lambda: self._pulled(trainer))

    def _redirect(self, trainer: Trainer) -> None:
        """The samples on their way to it are not those of its directive."""
        trainer.end_transfer(self._clock.now())
        if trainer.awaits_samples:
            trainer.awaits_samples = False
            self._boundary(trainer)  # it may have made its passes already

    def _pulled(self, trainer: Trainer) -> None:
        if trainer.present:
            self._merge(trainer)
            self.go_on(trainer)
