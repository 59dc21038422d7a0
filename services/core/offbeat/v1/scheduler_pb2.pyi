from offbeat.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Report(_message.Message):
    __slots__ = ("hello", "worker", "evaluator", "server", "goodbye")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    EVALUATOR_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    worker: WorkerReport
    evaluator: EvaluatorReport
    server: ServerReport
    goodbye: Goodbye
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., worker: _Optional[_Union[WorkerReport, _Mapping]] = ..., evaluator: _Optional[_Union[EvaluatorReport, _Mapping]] = ..., server: _Optional[_Union[ServerReport, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("role", "name", "incarnation", "offbeat_version", "device", "tasks", "shard", "shards", "samples")
    class TasksEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    OFFBEAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    role: _common_pb2.Role
    name: str
    incarnation: str
    offbeat_version: str
    device: DeviceInfo
    tasks: _containers.ScalarMap[str, str]
    shard: int
    shards: int
    samples: int
    def __init__(self, role: _Optional[_Union[_common_pb2.Role, str]] = ..., name: _Optional[str] = ..., incarnation: _Optional[str] = ..., offbeat_version: _Optional[str] = ..., device: _Optional[_Union[DeviceInfo, _Mapping]] = ..., tasks: _Optional[_Mapping[str, str]] = ..., shard: _Optional[int] = ..., shards: _Optional[int] = ..., samples: _Optional[int] = ...) -> None: ...

class DeviceInfo(_message.Message):
    __slots__ = ("machine", "compute", "compute_reason", "threads", "torch_version")
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_REASON_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    TORCH_VERSION_FIELD_NUMBER: _ClassVar[int]
    machine: str
    compute: str
    compute_reason: str
    threads: int
    torch_version: str
    def __init__(self, machine: _Optional[str] = ..., compute: _Optional[str] = ..., compute_reason: _Optional[str] = ..., threads: _Optional[int] = ..., torch_version: _Optional[str] = ...) -> None: ...

class WorkerReport(_message.Message):
    __slots__ = ("run_id", "phase", "error", "steps", "samples", "commits", "train_loss", "step_s", "commit_s", "hold_s", "time", "revision", "steps_since_pull", "shard_samples", "final", "sent_bytes", "received_bytes", "retries", "pull_s", "gradient_square", "gradient_variance", "gradient_pairs", "max_batch", "fetched_samples", "fetch_s")
    class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PHASE_UNSPECIFIED: _ClassVar[WorkerReport.Phase]
        IDLE: _ClassVar[WorkerReport.Phase]
        PREPARING: _ClassVar[WorkerReport.Phase]
        READY: _ClassVar[WorkerReport.Phase]
        TRAINING: _ClassVar[WorkerReport.Phase]
        FAILED: _ClassVar[WorkerReport.Phase]
        RESTING: _ClassVar[WorkerReport.Phase]
    PHASE_UNSPECIFIED: WorkerReport.Phase
    IDLE: WorkerReport.Phase
    PREPARING: WorkerReport.Phase
    READY: WorkerReport.Phase
    TRAINING: WorkerReport.Phase
    FAILED: WorkerReport.Phase
    RESTING: WorkerReport.Phase
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    TRAIN_LOSS_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    COMMIT_S_FIELD_NUMBER: _ClassVar[int]
    HOLD_S_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    STEPS_SINCE_PULL_FIELD_NUMBER: _ClassVar[int]
    SHARD_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    PULL_S_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_SQUARE_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_VARIANCE_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_PAIRS_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_FIELD_NUMBER: _ClassVar[int]
    FETCHED_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    FETCH_S_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    phase: WorkerReport.Phase
    error: str
    steps: int
    samples: int
    commits: int
    train_loss: float
    step_s: float
    commit_s: float
    hold_s: float
    time: Shares
    revision: int
    steps_since_pull: int
    shard_samples: int
    final: bool
    sent_bytes: int
    received_bytes: int
    retries: int
    pull_s: float
    gradient_square: float
    gradient_variance: float
    gradient_pairs: int
    max_batch: int
    fetched_samples: int
    fetch_s: float
    def __init__(self, run_id: _Optional[str] = ..., phase: _Optional[_Union[WorkerReport.Phase, str]] = ..., error: _Optional[str] = ..., steps: _Optional[int] = ..., samples: _Optional[int] = ..., commits: _Optional[int] = ..., train_loss: _Optional[float] = ..., step_s: _Optional[float] = ..., commit_s: _Optional[float] = ..., hold_s: _Optional[float] = ..., time: _Optional[_Union[Shares, _Mapping]] = ..., revision: _Optional[int] = ..., steps_since_pull: _Optional[int] = ..., shard_samples: _Optional[int] = ..., final: bool = ..., sent_bytes: _Optional[int] = ..., received_bytes: _Optional[int] = ..., retries: _Optional[int] = ..., pull_s: _Optional[float] = ..., gradient_square: _Optional[float] = ..., gradient_variance: _Optional[float] = ..., gradient_pairs: _Optional[int] = ..., max_batch: _Optional[int] = ..., fetched_samples: _Optional[int] = ..., fetch_s: _Optional[float] = ...) -> None: ...

class Shares(_message.Message):
    __slots__ = ("compute_s", "paced_s", "commit_s", "wait_s")
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    PACED_S_FIELD_NUMBER: _ClassVar[int]
    COMMIT_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    compute_s: float
    paced_s: float
    commit_s: float
    wait_s: float
    def __init__(self, compute_s: _Optional[float] = ..., paced_s: _Optional[float] = ..., commit_s: _Optional[float] = ..., wait_s: _Optional[float] = ...) -> None: ...

class EvaluatorReport(_message.Message):
    __slots__ = ("run_id", "version", "loss", "metric", "metric_name", "samples", "seconds", "error", "ready")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    METRIC_NAME_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    version: int
    loss: float
    metric: float
    metric_name: str
    samples: int
    seconds: float
    error: str
    ready: bool
    def __init__(self, run_id: _Optional[str] = ..., version: _Optional[int] = ..., loss: _Optional[float] = ..., metric: _Optional[float] = ..., metric_name: _Optional[str] = ..., samples: _Optional[int] = ..., seconds: _Optional[float] = ..., error: _Optional[str] = ..., ready: bool = ...) -> None: ...

class ServerReport(_message.Message):
    __slots__ = ("server_incarnation", "run_id", "seeded", "version", "active_trainers", "counts", "checkpoint_epoch", "durable_epoch", "checkpoint_path", "busy_s", "commits", "finished", "model_path", "best_model_path", "error", "best_version", "best_loss", "best_metric", "best_missed", "generation", "closed")
    SERVER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    SEEDED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_TRAINERS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DURABLE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_PATH_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    MODEL_PATH_FIELD_NUMBER: _ClassVar[int]
    BEST_MODEL_PATH_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    BEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    BEST_LOSS_FIELD_NUMBER: _ClassVar[int]
    BEST_METRIC_FIELD_NUMBER: _ClassVar[int]
    BEST_MISSED_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    server_incarnation: str
    run_id: str
    seeded: bool
    version: int
    active_trainers: int
    counts: _containers.RepeatedCompositeFieldContainer[CommitCount]
    checkpoint_epoch: int
    durable_epoch: int
    checkpoint_path: str
    busy_s: float
    commits: int
    finished: bool
    model_path: str
    best_model_path: str
    error: str
    best_version: int
    best_loss: float
    best_metric: float
    best_missed: int
    generation: int
    closed: int
    def __init__(self, server_incarnation: _Optional[str] = ..., run_id: _Optional[str] = ..., seeded: bool = ..., version: _Optional[int] = ..., active_trainers: _Optional[int] = ..., counts: _Optional[_Iterable[_Union[CommitCount, _Mapping]]] = ..., checkpoint_epoch: _Optional[int] = ..., durable_epoch: _Optional[int] = ..., checkpoint_path: _Optional[str] = ..., busy_s: _Optional[float] = ..., commits: _Optional[int] = ..., finished: bool = ..., model_path: _Optional[str] = ..., best_model_path: _Optional[str] = ..., error: _Optional[str] = ..., best_version: _Optional[int] = ..., best_loss: _Optional[float] = ..., best_metric: _Optional[float] = ..., best_missed: _Optional[int] = ..., generation: _Optional[int] = ..., closed: _Optional[int] = ...) -> None: ...

class CommitCount(_message.Message):
    __slots__ = ("worker", "commits", "generation", "train_loss", "steps", "samples", "staleness", "refused")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TRAIN_LOSS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    worker: str
    commits: int
    generation: int
    train_loss: float
    steps: int
    samples: int
    staleness: int
    refused: int
    def __init__(self, worker: _Optional[str] = ..., commits: _Optional[int] = ..., generation: _Optional[int] = ..., train_loss: _Optional[float] = ..., steps: _Optional[int] = ..., samples: _Optional[int] = ..., staleness: _Optional[int] = ..., refused: _Optional[int] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Directive(_message.Message):
    __slots__ = ("welcome", "worker", "evaluator", "server", "keep_best", "next")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    EVALUATOR_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    KEEP_BEST_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    worker: _common_pb2.WorkerDirective
    evaluator: _common_pb2.EvaluatorDirective
    server: _common_pb2.ServerDirective
    keep_best: KeepBest
    next: _common_pb2.NextDirectives
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., worker: _Optional[_Union[_common_pb2.WorkerDirective, _Mapping]] = ..., evaluator: _Optional[_Union[_common_pb2.EvaluatorDirective, _Mapping]] = ..., server: _Optional[_Union[_common_pb2.ServerDirective, _Mapping]] = ..., keep_best: _Optional[_Union[KeepBest, _Mapping]] = ..., next: _Optional[_Union[_common_pb2.NextDirectives, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("scheduler_incarnation", "report_every_s", "lease_s", "offbeat_version")
    SCHEDULER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REPORT_EVERY_S_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    OFFBEAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    scheduler_incarnation: str
    report_every_s: float
    lease_s: float
    offbeat_version: str
    def __init__(self, scheduler_incarnation: _Optional[str] = ..., report_every_s: _Optional[float] = ..., lease_s: _Optional[float] = ..., offbeat_version: _Optional[str] = ...) -> None: ...

class KeepBest(_message.Message):
    __slots__ = ("run_id", "version", "loss", "metric")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    version: int
    loss: float
    metric: float
    def __init__(self, run_id: _Optional[str] = ..., version: _Optional[int] = ..., loss: _Optional[float] = ..., metric: _Optional[float] = ...) -> None: ...

class SubmitRunRequest(_message.Message):
    __slots__ = ("run_yaml",)
    RUN_YAML_FIELD_NUMBER: _ClassVar[int]
    run_yaml: str
    def __init__(self, run_yaml: _Optional[str] = ...) -> None: ...

class SubmitRunReply(_message.Message):
    __slots__ = ("run_id", "effective_yaml")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_YAML_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    effective_yaml: str
    def __init__(self, run_id: _Optional[str] = ..., effective_yaml: _Optional[str] = ...) -> None: ...

class StopRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class StopRunReply(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("every_s",)
    EVERY_S_FIELD_NUMBER: _ClassVar[int]
    every_s: float
    def __init__(self, every_s: _Optional[float] = ...) -> None: ...

class EventsRequest(_message.Message):
    __slots__ = ("run_id", "follow")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    follow: bool
    def __init__(self, run_id: _Optional[str] = ..., follow: bool = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("phase", "run_id", "run_name", "outcome", "message", "elapsed_s", "sync", "check_period_s", "commit_rate", "interval_s", "loss", "metric", "metric_name", "evaluated", "target", "time_to_target_s", "reached", "commits", "version", "active_trainers", "workers", "probes", "evaluations", "model_path", "best_model_path", "best_loss", "best_metric", "effective_yaml", "parameter_server_attached", "evaluator_attached", "warnings", "allotment")
    class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PHASE_UNSPECIFIED: _ClassVar[Status.Phase]
        IDLE: _ClassVar[Status.Phase]
        WAITING: _ClassVar[Status.Phase]
        SEARCHING: _ClassVar[Status.Phase]
        TRAINING: _ClassVar[Status.Phase]
        FINISHING: _ClassVar[Status.Phase]
    PHASE_UNSPECIFIED: Status.Phase
    IDLE: Status.Phase
    WAITING: Status.Phase
    SEARCHING: Status.Phase
    TRAINING: Status.Phase
    FINISHING: Status.Phase
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OUTCOME_UNSPECIFIED: _ClassVar[Status.Outcome]
        REACHED: _ClassVar[Status.Outcome]
        LIMIT: _ClassVar[Status.Outcome]
        CONVERGED: _ClassVar[Status.Outcome]
        STOPPED: _ClassVar[Status.Outcome]
        FAILED: _ClassVar[Status.Outcome]
    OUTCOME_UNSPECIFIED: Status.Outcome
    REACHED: Status.Outcome
    LIMIT: Status.Outcome
    CONVERGED: Status.Outcome
    STOPPED: Status.Outcome
    FAILED: Status.Outcome
    PHASE_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_NAME_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    SYNC_FIELD_NUMBER: _ClassVar[int]
    CHECK_PERIOD_S_FIELD_NUMBER: _ClassVar[int]
    COMMIT_RATE_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    METRIC_NAME_FIELD_NUMBER: _ClassVar[int]
    EVALUATED_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_TARGET_S_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_TRAINERS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    PROBES_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    MODEL_PATH_FIELD_NUMBER: _ClassVar[int]
    BEST_MODEL_PATH_FIELD_NUMBER: _ClassVar[int]
    BEST_LOSS_FIELD_NUMBER: _ClassVar[int]
    BEST_METRIC_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_YAML_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_SERVER_ATTACHED_FIELD_NUMBER: _ClassVar[int]
    EVALUATOR_ATTACHED_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    ALLOTMENT_FIELD_NUMBER: _ClassVar[int]
    phase: Status.Phase
    run_id: str
    run_name: str
    outcome: Status.Outcome
    message: str
    elapsed_s: float
    sync: str
    check_period_s: float
    commit_rate: float
    interval_s: float
    loss: float
    metric: float
    metric_name: str
    evaluated: bool
    target: str
    time_to_target_s: float
    reached: bool
    commits: int
    version: int
    active_trainers: int
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    probes: _containers.RepeatedCompositeFieldContainer[Probe]
    evaluations: _containers.RepeatedCompositeFieldContainer[EvaluationPoint]
    model_path: str
    best_model_path: str
    best_loss: float
    best_metric: float
    effective_yaml: str
    parameter_server_attached: bool
    evaluator_attached: bool
    warnings: _containers.RepeatedScalarFieldContainer[str]
    allotment: Allotment
    def __init__(self, phase: _Optional[_Union[Status.Phase, str]] = ..., run_id: _Optional[str] = ..., run_name: _Optional[str] = ..., outcome: _Optional[_Union[Status.Outcome, str]] = ..., message: _Optional[str] = ..., elapsed_s: _Optional[float] = ..., sync: _Optional[str] = ..., check_period_s: _Optional[float] = ..., commit_rate: _Optional[float] = ..., interval_s: _Optional[float] = ..., loss: _Optional[float] = ..., metric: _Optional[float] = ..., metric_name: _Optional[str] = ..., evaluated: bool = ..., target: _Optional[str] = ..., time_to_target_s: _Optional[float] = ..., reached: bool = ..., commits: _Optional[int] = ..., version: _Optional[int] = ..., active_trainers: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., probes: _Optional[_Iterable[_Union[Probe, _Mapping]]] = ..., evaluations: _Optional[_Iterable[_Union[EvaluationPoint, _Mapping]]] = ..., model_path: _Optional[str] = ..., best_model_path: _Optional[str] = ..., best_loss: _Optional[float] = ..., best_metric: _Optional[float] = ..., effective_yaml: _Optional[str] = ..., parameter_server_attached: bool = ..., evaluator_attached: bool = ..., warnings: _Optional[_Iterable[str]] = ..., allotment: _Optional[_Union[Allotment, _Mapping]] = ...) -> None: ...

class Allotment(_message.Message):
    __slots__ = ("cycle_s", "max_staleness", "average_staleness", "idle_share", "solve_s", "max_solve_s", "observed_max_staleness", "observed_average_staleness")
    CYCLE_S_FIELD_NUMBER: _ClassVar[int]
    MAX_STALENESS_FIELD_NUMBER: _ClassVar[int]
    AVERAGE_STALENESS_FIELD_NUMBER: _ClassVar[int]
    IDLE_SHARE_FIELD_NUMBER: _ClassVar[int]
    SOLVE_S_FIELD_NUMBER: _ClassVar[int]
    MAX_SOLVE_S_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_MAX_STALENESS_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_AVERAGE_STALENESS_FIELD_NUMBER: _ClassVar[int]
    cycle_s: float
    max_staleness: float
    average_staleness: float
    idle_share: float
    solve_s: float
    max_solve_s: float
    observed_max_staleness: float
    observed_average_staleness: float
    def __init__(self, cycle_s: _Optional[float] = ..., max_staleness: _Optional[float] = ..., average_staleness: _Optional[float] = ..., idle_share: _Optional[float] = ..., solve_s: _Optional[float] = ..., max_solve_s: _Optional[float] = ..., observed_max_staleness: _Optional[float] = ..., observed_average_staleness: _Optional[float] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("name", "attached", "report", "commits", "steps_per_s", "staleness", "device", "error", "interval_s", "shard", "shards", "allotted_samples", "allotted_passes", "allotted_s", "local_updates", "batch", "allotted_updates")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_S_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    ALLOTTED_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    ALLOTTED_PASSES_FIELD_NUMBER: _ClassVar[int]
    ALLOTTED_S_FIELD_NUMBER: _ClassVar[int]
    LOCAL_UPDATES_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    ALLOTTED_UPDATES_FIELD_NUMBER: _ClassVar[int]
    name: str
    attached: bool
    report: WorkerReport
    commits: int
    steps_per_s: float
    staleness: int
    device: DeviceInfo
    error: str
    interval_s: float
    shard: int
    shards: int
    allotted_samples: int
    allotted_passes: int
    allotted_s: float
    local_updates: float
    batch: int
    allotted_updates: float
    def __init__(self, name: _Optional[str] = ..., attached: bool = ..., report: _Optional[_Union[WorkerReport, _Mapping]] = ..., commits: _Optional[int] = ..., steps_per_s: _Optional[float] = ..., staleness: _Optional[int] = ..., device: _Optional[_Union[DeviceInfo, _Mapping]] = ..., error: _Optional[str] = ..., interval_s: _Optional[float] = ..., shard: _Optional[int] = ..., shards: _Optional[int] = ..., allotted_samples: _Optional[int] = ..., allotted_passes: _Optional[int] = ..., allotted_s: _Optional[float] = ..., local_updates: _Optional[float] = ..., batch: _Optional[int] = ..., allotted_updates: _Optional[float] = ...) -> None: ...

class Probe(_message.Message):
    __slots__ = ("rate", "interval_s", "start_s", "end_s", "loss_start", "loss_end", "reward", "chosen")
    RATE_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    START_S_FIELD_NUMBER: _ClassVar[int]
    END_S_FIELD_NUMBER: _ClassVar[int]
    LOSS_START_FIELD_NUMBER: _ClassVar[int]
    LOSS_END_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    rate: float
    interval_s: float
    start_s: float
    end_s: float
    loss_start: float
    loss_end: float
    reward: float
    chosen: bool
    def __init__(self, rate: _Optional[float] = ..., interval_s: _Optional[float] = ..., start_s: _Optional[float] = ..., end_s: _Optional[float] = ..., loss_start: _Optional[float] = ..., loss_end: _Optional[float] = ..., reward: _Optional[float] = ..., chosen: bool = ...) -> None: ...

class EvaluationPoint(_message.Message):
    __slots__ = ("at_s", "version", "loss", "metric")
    AT_S_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    METRIC_FIELD_NUMBER: _ClassVar[int]
    at_s: float
    version: int
    loss: float
    metric: float
    def __init__(self, at_s: _Optional[float] = ..., version: _Optional[int] = ..., loss: _Optional[float] = ..., metric: _Optional[float] = ...) -> None: ...
