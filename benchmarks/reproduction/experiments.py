"""The experiments (a) to (k): what each asks, which scenarios answer it, and what a quick run leaves out."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.reproduction.build_allocation import COSTS, DIVISIONS, HETEROGENEITY, OWN, SCHEMES


@dataclass(frozen=True)
class Experiment:
    """One of the source's experiments, or one beyond it.

    Args:
        asks: one paragraph for the document.
        scenarios: name -> what it is.
        quick: scenario -> labels that a quick run compares; scenarios that are not in it are left out.
        solved: results that need no training: name -> what it is. They are the same in a quick run.
        per_model: the accuracy of each model that a server has had is kept.
    """

    letter: str
    title: str
    asks: str
    scenarios: dict[str, str]
    quick: dict[str, tuple[str, ...]] = field(default_factory=dict)
    solved: dict[str, str] = field(default_factory=dict)
    per_model: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Of all its results."""
        return (*self.scenarios, *self.solved)


QUICK_SEEDS = 2
BARRIER = "Fixed ADACOMM(8)"
QUICK = ("BSP", BARRIER, "ADSP")

EXPERIMENTS = {
    experiment.letter: experiment
    for experiment in (
        Experiment(
            "a",
            "Every model, at heterogeneity 3.2",
            "18 devices of three speeds (1, 3 and 5 local updates a second), each commit takes 0.3 s and is "
            "waited for, as in the source. How long until the smoothed held-out loss is reached, and where "
            "did the devices' time go? Then three workers, step times 1 : 1 : 3, for the source's waiting "
            "shares.",
            {
                "a-models": "Every synchronization model on 18 devices, heterogeneity 3.2",
                "a-three-workers": "Waiting shares of three workers, step times 1 : 1 : 3",
            },
            {
                "a-models": (
                    "BSP",
                    "SSP(3)",
                    "ASP",
                    BARRIER,
                    "ADACOMM",
                    "FedBuff(2)",
                    "FedCompass(8)",
                    "ADSP",
                ),
                "a-three-workers": ("BSP", "SSP(40)", "ADACOMM", "Fixed ADACOMM(40)", "ADSP"),
            },
        ),
        Experiment(
            "b",
            "Heterogeneity",
            "The same fleet with speeds closer together: the slowest device still makes one local update a "
            "second. 3.2 is (a).",
            {
                f"b-heterogeneity-{h}": f"Heterogeneity {h}: 18 devices, speeds closer together"
                for h in ("1.00", "1.45", "2.00", "2.60")
            },
            {"b-heterogeneity-1.00": QUICK, "b-heterogeneity-2.00": QUICK},
        ),
        Experiment(
            "c",
            "Number of workers",
            "The same three speeds in the same proportions; the source goes to 36. The target is nearer "
            "(loss 0.6) in all of these, for the work grows with the fleet.",
            {f"c-workers-{size}": f"{size} devices, heterogeneity 3.2" for size in (18, 36, 100, 500)},
            {f"c-workers-{size}": (BARRIER, "ADSP") for size in (18, 100)},
        ),
        Experiment(
            "d",
            "Commit delay",
            "A commit takes 0, 2, 5 or 10 of the slowest device's steps. ADSP and ASP also with overlap: "
            "training goes on while the commit travels, which is Offbeat's default.",
            {f"d-delay-{delay}": f"A commit takes {delay} slow steps" for delay in (0, 2, 5, 10)},
            {
                "d-delay-0": (BARRIER, "ADSP", "ADSP overlapped"),
                "d-delay-5": (BARRIER, "Fixed ADACOMM(16)", "ADSP", "ADSP overlapped"),
            },
        ),
        Experiment(
            "e",
            "Commit rate, fixed and searched",
            "ADSP at fixed commits per check period, against the three searches that choose it themselves. "
            "The best fixed rate is known only in hindsight.",
            {
                "e-rates-0.3": "Commit rates at a delay of 0.3 slow steps",
                "e-rates-3": "Commit rates at a delay of 3 slow steps",
                "e-rates-3-overlapped": "Commit rates at a delay of 3 slow steps, commits overlapped",
            },
            {
                "e-rates-0.3": (
                    *(f"ADSP rate {rate}" for rate in (1, 4, 16)),
                    "ADSP search: robust",
                    "ADSP search: source",
                ),
            },
        ),
        Experiment(
            "f",
            "Other workloads",
            "The fleet of (a) with other models on other data, each with learning rates tuned for it.",
            {
                "f-cnn": "A CNN on pictures (Fashion-MNIST), batch 32",
                "f-lstm": "An LSTM of 64 units on windows of 100 weekly CO2 values",
                "f-svm": "A support vector machine with a Gaussian kernel (hinge loss) on tabular data",
            },
            {"f-cnn": (BARRIER, "ADSP"), "f-lstm": (BARRIER, "ADSP"), "f-svm": QUICK},
        ),
        Experiment(
            "g",
            "Unequal data, and a weight rule for it",
            "The data divided evenly, by Dirichlet(0.3), and by speed: slow devices hold classes 0 to 2, "
            "middle ones 3 to 5, fast ones 6 to 9. With weight `per_step` an update counts in inverse "
            "proportion to the local updates in it (as FedNova), so that fast devices pull the model no "
            "further towards their own data. Under ASP each commit holds one local update: the rule changes "
            "nothing.",
            {
                "g-iid": "Weight rules where the data is divided evenly",
                "g-dirichlet": "Weight rules where classes are divided by Dirichlet(0.3)",
                "g-labels-by-speed": "Weight rules where the classes that a device holds go with its speed",
            },
            {
                "g-labels-by-speed": (BARRIER, "ADSP", "ADSP, weight per step"),
            },
        ),
        Experiment(
            "h",
            "Changes in the middle of a run",
            "After 30 s three fast devices become the slowest of all (they got hot) and the slow ones become "
            "middling; or a slow device leaves without a word after 30 s and a fast one after 45 s.",
            {
                "h-speed-changes": "Devices change their speed after 30 s",
                "h-devices-leave": "A slow device leaves after 30 s, a fast one after 45 s",
            },
            {"h-speed-changes": QUICK},
        ),
        Experiment(
            "i",
            "Allocation: staleness against the number of learners",
            "Now the source is Mohammad and Sorour. Learners work in cycles of T seconds; in each the "
            "scheduler gives learner k a number of samples d_k and of local updates (passes over them) "
            "tau_k. *Staleness* is the difference of two learners' tau. In the published setting (half of "
            "the learners at 2.4 GHz, half at 700 MHz, 60,000 samples a cycle): how stale do learners get, "
            "how many updates are made and how long do they idle with the optimised allocation (the "
            "full-cycle rule: everybody works at least 98 % of T), with the same tau for all (synchronous), "
            "and with equal samples for all and as many updates as fit (equal task allocation)? Only "
            "solvers are at work here, nothing is trained. c is the number of updates that all would make "
            "if it need not be whole ([allocation.md](allocation.md)).",
            {},
            solved={"i-staleness": "Staleness, updates and idle time in the published setting"},
        ),
        Experiment(
            "j",
            "Allocation: accuracy after the same number of cycles",
            "Do the updates that the allocation wins make a better model? Half of the learners make five "
            "local steps a second, half 1.5 (the ratio of 2.4 GHz to 700 MHz); T = 20 s, d samples drawn "
            "anew in each cycle from evenly divided Fashion-MNIST, averaged by d_k at the cycle's end. Each "
            "learner's speed is measured, not known: the first cycle, the same for all, is for that and is "
            "not counted. In two fleets c promises more updates; in the third it is just above a whole "
            "number, so that there is nothing to win. No target: all runs go on for as long. Accuracy on "
            "10,000 held-out pictures is the mean over the models of three cycles, the last of them named; "
            "differences are over paired seeds, in brackets 95 % by Student's t. Each has the learning rate "
            "that was tuned for Fixed ADACOMM(16), which too averages models after some dozen local steps; "
            "the three were not tuned one by one.",
            {
                "j-10-learners": "Allotted cycles, 10 learners, c = 1.65",
                "j-20-learners": "Allotted cycles, 20 learners, c = 2.75",
                "j-no-gain": "Allotted cycles, 10 learners, c just above a whole number: nothing to win",
            },
            {"j-10-learners": tuple(SCHEMES)},
            per_model=True,
        ),
        Experiment(
            "k",
            "Batches by goodput under ADSP",
            "Beyond both sources: each device gets a batch of its own, the one with the highest goodput "
            "(samples a second times progress a sample), with a lower learning rate where it is smaller than "
            "the run's. So between two commits a device makes fewer, larger updates than with the batch of "
            "all, or more, smaller ones. Where a step's time is proportional to the batch, a large one saves "
            "no time, and a small one makes more updates of the same samples; where part of it is fixed (the "
            "start of a kernel, Python), larger batches use the device better. Here the fixed part is "
            "nothing, or half of a step's time on the faster half of the devices. The fleet of (a) at three "
            "heterogeneities, data divided evenly and by Dirichlet(0.3), the rate that was tuned for ADSP in "
            "both.",
            {
                f"k-{h}-{division}-{cost}": f"ADSP with a batch for each device: heterogeneity {h}, "
                f"{division}, step time {cost.replace('-', ' ')}"
                for h in HETEROGENEITY
                for division in DIVISIONS
                for cost in COSTS
            },
            {"k-3.20-iid-fixed-part": ("ADSP", OWN)},
        ),
    )
}
ABOUT = {name: about for experiment in EXPERIMENTS.values() for name, about in experiment.scenarios.items()}
