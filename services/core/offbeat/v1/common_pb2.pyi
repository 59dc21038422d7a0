from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_PARAMETER_SERVER: _ClassVar[Role]
    ROLE_WORKER: _ClassVar[Role]
    ROLE_EVALUATOR: _ClassVar[Role]

class Codec(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CODEC_UNSPECIFIED: _ClassVar[Codec]
    CODEC_FLOAT32: _ClassVar[Codec]
ROLE_UNSPECIFIED: Role
ROLE_PARAMETER_SERVER: Role
ROLE_WORKER: Role
ROLE_EVALUATOR: Role
CODEC_UNSPECIFIED: Codec
CODEC_FLOAT32: Codec

class Manifest(_message.Message):
    __slots__ = ("trainable", "buffers")
    TRAINABLE_FIELD_NUMBER: _ClassVar[int]
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    trainable: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    buffers: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    def __init__(self, trainable: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., buffers: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ...) -> None: ...

class TensorSpec(_message.Message):
    __slots__ = ("name", "shape", "dtype")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("offset", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Trigger(_message.Message):
    __slots__ = ("grid", "steps", "passes")
    GRID_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    grid: Grid
    steps: int
    passes: int
    def __init__(self, grid: _Optional[_Union[Grid, _Mapping]] = ..., steps: _Optional[int] = ..., passes: _Optional[int] = ...) -> None: ...

class Grid(_message.Message):
    __slots__ = ("interval_s", "elapsed_s")
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    interval_s: float
    elapsed_s: float
    def __init__(self, interval_s: _Optional[float] = ..., elapsed_s: _Optional[float] = ...) -> None: ...

class Gate(_message.Message):
    __slots__ = ("slack", "deadline_s")
    SLACK_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    slack: int
    deadline_s: float
    def __init__(self, slack: _Optional[int] = ..., deadline_s: _Optional[float] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("members", "gate")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    GATE_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedScalarFieldContainer[str]
    gate: Gate
    def __init__(self, members: _Optional[_Iterable[str]] = ..., gate: _Optional[_Union[Gate, _Mapping]] = ...) -> None: ...

class Fold(_message.Message):
    __slots__ = ("when", "every_k", "weight", "server_rate", "staleness_power")
    class When(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        WHEN_UNSPECIFIED: _ClassVar[Fold.When]
        AT_ONCE: _ClassVar[Fold.When]
        EVERY_K: _ClassVar[Fold.When]
        AT_GATE: _ClassVar[Fold.When]
    WHEN_UNSPECIFIED: Fold.When
    AT_ONCE: Fold.When
    EVERY_K: Fold.When
    AT_GATE: Fold.When
    class Weight(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        WEIGHT_UNSPECIFIED: _ClassVar[Fold.Weight]
        EQUAL: _ClassVar[Fold.Weight]
        SAMPLES: _ClassVar[Fold.Weight]
        DATA: _ClassVar[Fold.Weight]
        PER_STEP: _ClassVar[Fold.Weight]
    WEIGHT_UNSPECIFIED: Fold.Weight
    EQUAL: Fold.Weight
    SAMPLES: Fold.Weight
    DATA: Fold.Weight
    PER_STEP: Fold.Weight
    WHEN_FIELD_NUMBER: _ClassVar[int]
    EVERY_K_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SERVER_RATE_FIELD_NUMBER: _ClassVar[int]
    STALENESS_POWER_FIELD_NUMBER: _ClassVar[int]
    when: Fold.When
    every_k: int
    weight: Fold.Weight
    server_rate: float
    staleness_power: float
    def __init__(self, when: _Optional[_Union[Fold.When, str]] = ..., every_k: _Optional[int] = ..., weight: _Optional[_Union[Fold.Weight, str]] = ..., server_rate: _Optional[float] = ..., staleness_power: _Optional[float] = ...) -> None: ...

class WorkerDirective(_message.Message):
    __slots__ = ("revision", "action", "run_id", "generation", "task", "trigger", "batch", "learning_rate", "momentum", "weight_decay", "overlap", "may_seed", "max_lone_steps", "seed", "samples", "reason", "once", "model_version", "draw", "gradient_noise", "parallelized")
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ACTION_UNSPECIFIED: _ClassVar[WorkerDirective.Action]
        IDLE: _ClassVar[WorkerDirective.Action]
        PREPARE: _ClassVar[WorkerDirective.Action]
        TRAIN: _ClassVar[WorkerDirective.Action]
        REFUSED: _ClassVar[WorkerDirective.Action]
        REST: _ClassVar[WorkerDirective.Action]
    ACTION_UNSPECIFIED: WorkerDirective.Action
    IDLE: WorkerDirective.Action
    PREPARE: WorkerDirective.Action
    TRAIN: WorkerDirective.Action
    REFUSED: WorkerDirective.Action
    REST: WorkerDirective.Action
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    TRIGGER_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    MOMENTUM_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    MAY_SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_LONE_STEPS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ONCE_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    DRAW_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_NOISE_FIELD_NUMBER: _ClassVar[int]
    PARALLELIZED_FIELD_NUMBER: _ClassVar[int]
    revision: int
    action: WorkerDirective.Action
    run_id: str
    generation: int
    task: RunTask
    trigger: Trigger
    batch: int
    learning_rate: float
    momentum: float
    weight_decay: float
    overlap: bool
    may_seed: bool
    max_lone_steps: int
    seed: int
    samples: _containers.RepeatedScalarFieldContainer[int]
    reason: str
    once: bool
    model_version: int
    draw: int
    gradient_noise: bool
    parallelized: bool
    def __init__(self, revision: _Optional[int] = ..., action: _Optional[_Union[WorkerDirective.Action, str]] = ..., run_id: _Optional[str] = ..., generation: _Optional[int] = ..., task: _Optional[_Union[RunTask, _Mapping]] = ..., trigger: _Optional[_Union[Trigger, _Mapping]] = ..., batch: _Optional[int] = ..., learning_rate: _Optional[float] = ..., momentum: _Optional[float] = ..., weight_decay: _Optional[float] = ..., overlap: bool = ..., may_seed: bool = ..., max_lone_steps: _Optional[int] = ..., seed: _Optional[int] = ..., samples: _Optional[_Iterable[int]] = ..., reason: _Optional[str] = ..., once: bool = ..., model_version: _Optional[int] = ..., draw: _Optional[int] = ..., gradient_noise: bool = ..., parallelized: bool = ...) -> None: ...

class EvaluatorDirective(_message.Message):
    __slots__ = ("revision", "run_id", "task", "every_s", "seed", "batch")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    EVERY_S_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    revision: int
    run_id: str
    task: RunTask
    every_s: float
    seed: int
    batch: int
    def __init__(self, revision: _Optional[int] = ..., run_id: _Optional[str] = ..., task: _Optional[_Union[RunTask, _Mapping]] = ..., every_s: _Optional[float] = ..., seed: _Optional[int] = ..., batch: _Optional[int] = ...) -> None: ...

class ServerDirective(_message.Message):
    __slots__ = ("revision", "run_id", "generation", "gate", "fold", "cohort", "membership_window_s", "lease_s", "checkpoint_every_s", "task", "initial_model", "finished", "groups", "once", "resume", "shares", "seed")
    class SharesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    REVISION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    GATE_FIELD_NUMBER: _ClassVar[int]
    FOLD_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_WINDOW_S_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_EVERY_S_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    INITIAL_MODEL_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    ONCE_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    revision: int
    run_id: str
    generation: int
    gate: Gate
    fold: Fold
    cohort: _containers.RepeatedScalarFieldContainer[str]
    membership_window_s: float
    lease_s: float
    checkpoint_every_s: float
    task: RunTask
    initial_model: str
    finished: bool
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    once: bool
    resume: Resume
    shares: _containers.ScalarMap[str, int]
    seed: int
    def __init__(self, revision: _Optional[int] = ..., run_id: _Optional[str] = ..., generation: _Optional[int] = ..., gate: _Optional[_Union[Gate, _Mapping]] = ..., fold: _Optional[_Union[Fold, _Mapping]] = ..., cohort: _Optional[_Iterable[str]] = ..., membership_window_s: _Optional[float] = ..., lease_s: _Optional[float] = ..., checkpoint_every_s: _Optional[float] = ..., task: _Optional[_Union[RunTask, _Mapping]] = ..., initial_model: _Optional[str] = ..., finished: bool = ..., groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ..., once: bool = ..., resume: _Optional[_Union[Resume, _Mapping]] = ..., shares: _Optional[_Mapping[str, int]] = ..., seed: _Optional[int] = ...) -> None: ...

class Resume(_message.Message):
    __slots__ = ("version", "trainers")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TRAINERS_FIELD_NUMBER: _ClassVar[int]
    version: int
    trainers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[int] = ..., trainers: _Optional[_Iterable[str]] = ...) -> None: ...

class NextDirectives(_message.Message):
    __slots__ = ("workers",)
    class WorkersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: WorkerDirective
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[WorkerDirective, _Mapping]] = ...) -> None: ...
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.MessageMap[str, WorkerDirective]
    def __init__(self, workers: _Optional[_Mapping[str, WorkerDirective]] = ...) -> None: ...

class RunTask(_message.Message):
    __slots__ = ("name", "digest", "options", "partition")
    class OptionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: str
    options: _containers.ScalarMap[str, str]
    partition: str
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[str] = ..., options: _Optional[_Mapping[str, str]] = ..., partition: _Optional[str] = ...) -> None: ...
