"""A module whose trainable tensors are views into one flat float32 vector.

A commit then copies nothing needlessly, an optimizer step is a few operations on one
vector, and loading a model is one copy. What lies where:

    vector    [ trainable tensors | floating buffers ]    as it travels (see Manifest)
    gradient  [ trainable tensors ]                       where autograd accumulates

- Frozen tensors (`requires_grad=False`), integer buffers, buffers that a state dict
  leaves out, and buffers that are not finite when built (masks of -inf: constants, not
  statistics) stay on the device.
- Tied tensors travel once: one Parameter under several names, as well as several
  Parameters over the same memory.
- A tensor of another dtype (bfloat16, float16, float64) cannot be a view into float32:
  the vector holds its master copy, which takes the updates; the tensor itself follows
  it after every change. Small updates are so not lost to rounding.
"""

from __future__ import annotations

import torch
from torch import nn

from offbeat_core.errors import OffbeatError
from offbeat_core.manifest import Manifest, TensorSpec

_Owner = tuple[nn.Module, str]  # of a buffer: module and attribute


class FlatModel:
    """Flattens `module` in place and moves it to `device`.

    Attributes:
        module: the module itself, ready to use.
        manifest: what travels.
        vector: float32 of shape (manifest.elements,), on `device`.
        parameters: its first part, float32 of shape (manifest.trainable_elements,).
        buffers: the rest, of shape (manifest.buffer_elements,).
        gradient: float32 of the shape of `parameters`; zero it after a step.

    Raises OffbeatError where a tensor cannot travel, naming it.
    """

    @torch.no_grad()
    def __init__(self, module: nn.Module, device: torch.device | str = "cpu") -> None:
        device = torch.device(device)
        trainable, aliases = _trainable(module)
        buffers = _buffers(module)
        self.module = module
        self.manifest = Manifest(
            tuple(_spec(name, tensor) for name, tensor in trainable),
            tuple(_spec(name, tensor) for name, tensor, _ in buffers),
        )
        module.to(device)
        n = self.manifest.trainable_elements
        self.vector = torch.empty(self.manifest.elements, dtype=torch.float32, device=device)
        self.parameters = self.vector[:n]
        self.buffers = self.vector[n:]
        self.gradient = torch.zeros(n, dtype=torch.float32, device=device)

        self._views: list[tuple[torch.Tensor, torch.Tensor]] = []  # float32 Parameters, their gradients
        self._followers: list[
            tuple[torch.Tensor, torch.Tensor, torch.Tensor]
        ] = []  # others, master, gradient
        self._places: list[tuple[str, torch.Tensor, torch.Tensor]] = []  # float32 Parameters, for the check
        self._buffer_slots: list[tuple[_Owner, torch.Tensor]] = []
        where = self.manifest.slices
        for name, tensor in trainable:
            self._place(name, tensor, where[name].start, tuple(tensor.shape), None)
        for name, tensor, of, strides, offset in aliases:
            self._place(name, tensor, where[of].start + offset, tuple(tensor.shape), strides)
        for name, _, owner in buffers:
            buffer = _current(owner)
            place = self.vector[where[name]].view(buffer.shape)
            place.copy_(buffer)
            if buffer.dtype == torch.float32:
                buffer.data = place
            self._buffer_slots.append((owner, place))
        for child in module.modules():
            if isinstance(child, nn.RNNBase):
                # On CUDA it would move the weights out of the vector; without it cuDNN copies them per call.
                child.flatten_parameters = lambda: None  # type: ignore[method-assign]

    def _place(
        self,
        name: str,
        tensor: torch.Tensor,
        start: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...] | None,
    ) -> None:
        """Give a Parameter its place; `strides` only for an alias, whose values are there already."""

        def view(flat: torch.Tensor) -> torch.Tensor:
            if strides is not None:
                return flat.as_strided(shape, strides, flat.storage_offset() + start)
            return flat[start : start + tensor.numel()].view(shape)

        place = view(self.vector)
        if strides is None:
            place.copy_(tensor)
        gradient = view(self.gradient)
        if tensor.dtype == torch.float32:
            tensor.data = place
            self._places.append((name, tensor, place))
            if tensor.requires_grad:
                tensor.grad = gradient
                self._views.append((tensor, gradient))
        else:
            self._followers.append((tensor, place, gradient))

    @torch.no_grad()
    def gather_gradients(self) -> None:
        """After backward: whatever autograd did not accumulate in place joins `gradient`."""
        for tensor, gradient in self._views:
            if tensor.grad is not gradient:
                if tensor.grad is not None:
                    gradient.add_(tensor.grad)
                tensor.grad = gradient
        for tensor, _, gradient in self._followers:
            if tensor.grad is not None:
                gradient.add_(tensor.grad)
                tensor.grad = None

    @torch.no_grad()
    def publish(self) -> None:
        """After `parameters` changed: tensors of other dtypes follow their master copies."""
        for tensor, master, _ in self._followers:
            tensor.copy_(master)

    @torch.no_grad()
    def gather_buffers(self) -> None:
        """Before `buffers` is read: collect those that are not views, or no longer are.

        Raises OffbeatError if a Parameter has left the vector (its steps would be lost).
        """
        for name, tensor, place in self._places:
            if not _same_memory(tensor, place):
                raise OffbeatError(
                    f"model: parameter '{name}' was given another tensor while training",
                    "change parameters in place (copy_), don't assign .data",
                )
        for owner, place in self._buffer_slots:
            buffer = _current(owner)
            if not _same_memory(buffer, place):
                place.copy_(buffer)

    @torch.no_grad()
    def load_buffers(self, values: torch.Tensor) -> None:
        """Take over buffers, float32 of shape (buffer_elements,)."""
        self.buffers.copy_(values)
        for owner, place in self._buffer_slots:
            buffer = _current(owner)
            if not _same_memory(buffer, place):
                buffer.copy_(place)

    @torch.no_grad()
    def load(self, values: torch.Tensor) -> None:
        """Take over a whole model, float32 of shape (elements,)."""
        n = self.parameters.numel()
        self.parameters.copy_(values[:n])
        self.load_buffers(values[n:])
        self.publish()


def _current(owner: _Owner) -> torch.Tensor:
    """The buffer that a module has now; it may have been assigned anew."""
    buffer = owner[0]._buffers[owner[1]]
    assert buffer is not None
    return buffer


def _same_memory(tensor: torch.Tensor, place: torch.Tensor) -> bool:
    return tensor.data_ptr() == place.data_ptr() and tensor.dtype == place.dtype


def _spec(name: str, tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


_Alias = tuple[str, torch.Tensor, str, tuple[int, ...], int]


def _trainable(module: nn.Module) -> tuple[list[tuple[str, torch.Tensor]], list[_Alias]]:
    """Trainable Parameters that travel, and those that are another view of one of them.

    An alias is (name, tensor, name of the one that travels, strides, offset in elements).
    """
    placed: list[tuple[str, torch.Tensor]] = []
    aliases: list[_Alias] = []
    by_storage: dict[int, list[tuple[str, torch.Tensor]]] = {}
    everything = list(module.named_parameters())
    # Trainable ones first: a frozen alias of a trainable tensor follows it.
    for name, tensor in sorted(everything, key=lambda item: not item[1].requires_grad):
        if nn.parameter.is_lazy(tensor):
            raise OffbeatError(
                f"model: parameter '{name}' has no shape yet (a lazy module)",
                "run one batch through the model in build_model",
            )
        if tensor.requires_grad and not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise OffbeatError(
                f"model: parameter '{name}' is {kind}, which cannot travel as float32",
                "use real floating-point parameters, or set requires_grad=False",
            )
        neighbours = by_storage.setdefault(tensor.untyped_storage().data_ptr(), [])
        twin = next(((n, t) for n, t in neighbours if _overlap(t, tensor)), None)
        if twin is None:
            if tensor.requires_grad:
                placed.append((name, tensor))
                neighbours.append((name, tensor))
            continue
        of, base = twin
        start = tensor.storage_offset() - base.storage_offset()
        if not base.is_contiguous() or start < 0 or start + _extent(tensor) > base.numel():
            raise OffbeatError(
                f"model: parameters '{of}' and '{name}' share a part of their memory",
                "share one whole Parameter, or none of it",
            )
        aliases.append((name, tensor, of, tuple(map(int, tensor.stride())), int(start)))
    return placed, aliases


def _buffers(module: nn.Module) -> list[tuple[str, torch.Tensor, _Owner]]:
    """Floating buffers that a state dict holds and that are finite, each once."""
    found: list[tuple[str, torch.Tensor, _Owner]] = []
    seen: set[int] = set()
    for prefix, child in module.named_modules():
        for attribute, tensor in child._buffers.items():
            if (
                tensor is None
                or id(tensor) in seen
                or attribute in child._non_persistent_buffers_set
                or not tensor.is_floating_point()
                or not bool(torch.isfinite(tensor).all())
            ):
                continue
            seen.add(id(tensor))
            found.append((f"{prefix}.{attribute}" if prefix else attribute, tensor, (child, attribute)))
    return found


def _extent(tensor: torch.Tensor) -> int:
    """Elements from a tensor's first to behind its last, in memory."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Do two tensors of one storage share memory? By first and last element: never misses, may be strict."""
    if a.numel() == 0 or b.numel() == 0:
        return False
    start_a, start_b = a.storage_offset(), b.storage_offset()
    return start_a < start_b + _extent(b) and start_b < start_a + _extent(a)
