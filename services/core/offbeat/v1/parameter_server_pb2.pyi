from offbeat.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SeedHeader(_message.Message):
    __slots__ = ("run_id", "worker", "manifest", "codec", "total_bytes")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    worker: str
    manifest: _common_pb2.Manifest
    codec: _common_pb2.Codec
    total_bytes: int
    def __init__(self, run_id: _Optional[str] = ..., worker: _Optional[str] = ..., manifest: _Optional[_Union[_common_pb2.Manifest, _Mapping]] = ..., codec: _Optional[_Union[_common_pb2.Codec, str]] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class SeedPart(_message.Message):
    __slots__ = ("header", "part")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    header: SeedHeader
    part: _common_pb2.Part
    def __init__(self, header: _Optional[_Union[SeedHeader, _Mapping]] = ..., part: _Optional[_Union[_common_pb2.Part, _Mapping]] = ...) -> None: ...

class SeedReply(_message.Message):
    __slots__ = ("accepted", "version", "manifest_digest")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    version: int
    manifest_digest: str
    def __init__(self, accepted: bool = ..., version: _Optional[int] = ..., manifest_digest: _Optional[str] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("run_id", "name", "role", "incarnation", "manifest_digest", "newer_than_version", "only_if_newer")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    NEWER_THAN_VERSION_FIELD_NUMBER: _ClassVar[int]
    ONLY_IF_NEWER_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    name: str
    role: _common_pb2.Role
    incarnation: str
    manifest_digest: str
    newer_than_version: int
    only_if_newer: bool
    def __init__(self, run_id: _Optional[str] = ..., name: _Optional[str] = ..., role: _Optional[_Union[_common_pb2.Role, str]] = ..., incarnation: _Optional[str] = ..., manifest_digest: _Optional[str] = ..., newer_than_version: _Optional[int] = ..., only_if_newer: bool = ...) -> None: ...

class CommitHeader(_message.Message):
    __slots__ = ("run_id", "worker", "incarnation", "sequence", "base_version", "manifest_digest", "codec", "total_bytes", "generation", "steps", "samples", "train_loss", "replay", "shard_samples")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    TRAIN_LOSS_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    SHARD_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    worker: str
    incarnation: str
    sequence: int
    base_version: int
    manifest_digest: str
    codec: _common_pb2.Codec
    total_bytes: int
    generation: int
    steps: int
    samples: int
    train_loss: float
    replay: Replay
    shard_samples: int
    def __init__(self, run_id: _Optional[str] = ..., worker: _Optional[str] = ..., incarnation: _Optional[str] = ..., sequence: _Optional[int] = ..., base_version: _Optional[int] = ..., manifest_digest: _Optional[str] = ..., codec: _Optional[_Union[_common_pb2.Codec, str]] = ..., total_bytes: _Optional[int] = ..., generation: _Optional[int] = ..., steps: _Optional[int] = ..., samples: _Optional[int] = ..., train_loss: _Optional[float] = ..., replay: _Optional[_Union[Replay, _Mapping]] = ..., shard_samples: _Optional[int] = ...) -> None: ...

class Replay(_message.Message):
    __slots__ = ("epoch", "first_sequence", "last_sequence")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    first_sequence: int
    last_sequence: int
    def __init__(self, epoch: _Optional[int] = ..., first_sequence: _Optional[int] = ..., last_sequence: _Optional[int] = ...) -> None: ...

class CommitPart(_message.Message):
    __slots__ = ("header", "part")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    header: CommitHeader
    part: _common_pb2.Part
    def __init__(self, header: _Optional[_Union[CommitHeader, _Mapping]] = ..., part: _Optional[_Union[_common_pb2.Part, _Mapping]] = ...) -> None: ...

class CommitAck(_message.Message):
    __slots__ = ("sequence", "outcome", "reason", "weight", "checkpoint_epoch", "durable_epoch", "staleness")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OUTCOME_UNSPECIFIED: _ClassVar[CommitAck.Outcome]
        APPLIED: _ClassVar[CommitAck.Outcome]
        DUPLICATE: _ClassVar[CommitAck.Outcome]
        REFUSED: _ClassVar[CommitAck.Outcome]
        LATE: _ClassVar[CommitAck.Outcome]
    OUTCOME_UNSPECIFIED: CommitAck.Outcome
    APPLIED: CommitAck.Outcome
    DUPLICATE: CommitAck.Outcome
    REFUSED: CommitAck.Outcome
    LATE: CommitAck.Outcome
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DURABLE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    outcome: CommitAck.Outcome
    reason: str
    weight: float
    checkpoint_epoch: int
    durable_epoch: int
    staleness: int
    def __init__(self, sequence: _Optional[int] = ..., outcome: _Optional[_Union[CommitAck.Outcome, str]] = ..., reason: _Optional[str] = ..., weight: _Optional[float] = ..., checkpoint_epoch: _Optional[int] = ..., durable_epoch: _Optional[int] = ..., staleness: _Optional[int] = ...) -> None: ...

class ModelHeader(_message.Message):
    __slots__ = ("run_id", "version", "manifest_digest", "codec", "total_bytes", "server_incarnation", "ack", "next", "commits", "manifest", "held_s")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    SERVER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    HELD_S_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    version: int
    manifest_digest: str
    codec: _common_pb2.Codec
    total_bytes: int
    server_incarnation: str
    ack: CommitAck
    next: _common_pb2.WorkerDirective
    commits: int
    manifest: _common_pb2.Manifest
    held_s: float
    def __init__(self, run_id: _Optional[str] = ..., version: _Optional[int] = ..., manifest_digest: _Optional[str] = ..., codec: _Optional[_Union[_common_pb2.Codec, str]] = ..., total_bytes: _Optional[int] = ..., server_incarnation: _Optional[str] = ..., ack: _Optional[_Union[CommitAck, _Mapping]] = ..., next: _Optional[_Union[_common_pb2.WorkerDirective, _Mapping]] = ..., commits: _Optional[int] = ..., manifest: _Optional[_Union[_common_pb2.Manifest, _Mapping]] = ..., held_s: _Optional[float] = ...) -> None: ...

class ModelPart(_message.Message):
    __slots__ = ("header", "part")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    header: ModelHeader
    part: _common_pb2.Part
    def __init__(self, header: _Optional[_Union[ModelHeader, _Mapping]] = ..., part: _Optional[_Union[_common_pb2.Part, _Mapping]] = ...) -> None: ...

class SamplesRequest(_message.Message):
    __slots__ = ("run_id", "worker", "incarnation", "generation")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    worker: str
    incarnation: str
    generation: int
    def __init__(self, run_id: _Optional[str] = ..., worker: _Optional[str] = ..., incarnation: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class SamplesHeader(_message.Message):
    __slots__ = ("run_id", "generation", "count", "fields", "digest", "total_bytes", "held_s")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_S_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    generation: int
    count: int
    fields: _containers.RepeatedCompositeFieldContainer[_common_pb2.TensorSpec]
    digest: str
    total_bytes: int
    held_s: float
    def __init__(self, run_id: _Optional[str] = ..., generation: _Optional[int] = ..., count: _Optional[int] = ..., fields: _Optional[_Iterable[_Union[_common_pb2.TensorSpec, _Mapping]]] = ..., digest: _Optional[str] = ..., total_bytes: _Optional[int] = ..., held_s: _Optional[float] = ...) -> None: ...

class SamplesPart(_message.Message):
    __slots__ = ("header", "part")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    header: SamplesHeader
    part: _common_pb2.Part
    def __init__(self, header: _Optional[_Union[SamplesHeader, _Mapping]] = ..., part: _Optional[_Union[_common_pb2.Part, _Mapping]] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("run_id", "worker", "incarnation")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    worker: str
    incarnation: str
    def __init__(self, run_id: _Optional[str] = ..., worker: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ("known", "lease_s", "server_incarnation", "durable_epoch")
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    SERVER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DURABLE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    known: bool
    lease_s: float
    server_incarnation: str
    durable_epoch: int
    def __init__(self, known: bool = ..., lease_s: _Optional[float] = ..., server_incarnation: _Optional[str] = ..., durable_epoch: _Optional[int] = ...) -> None: ...

class CheckpointRequest(_message.Message):
    __slots__ = ("run_id", "worker")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    worker: str
    def __init__(self, run_id: _Optional[str] = ..., worker: _Optional[str] = ...) -> None: ...

class CheckpointReply(_message.Message):
    __slots__ = ("epoch", "version")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    version: int
    def __init__(self, epoch: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...
