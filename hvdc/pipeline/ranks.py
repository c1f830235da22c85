"""Several processes that share one piece of work, as `torchrun` starts them; one process is a group of its own."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from hvdc.errors import HvdcError, UsageError
from quant.calibration.statistics import Statistics

T = TypeVar("T")

TIMEOUT_S = 1800
"""How long a rank waits for the others before it gives them up, unless $HVDC_RANK_TIMEOUT_S says otherwise."""


@dataclass(frozen=True)
class Ranks:
    """This process's place in the group."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, items: list[T]) -> list[T]:
        """The items that this rank does."""
        return items[self.rank :: self.world]

    def broadcast(self, value: T) -> T:
        """Rank 0's value, on all ranks. Raises HvdcError."""
        if self.world == 1:
            return value
        box: list[Any] = [value]
        _together(lambda: dist.broadcast_object_list(box, device=self._collective_device()))
        out: T = box[0]
        return out

    def gather(self, value: T) -> list[T]:
        """Every rank's value, on all ranks, in rank order. Raises HvdcError."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        _together(lambda: dist.all_gather_object(values, value))
        return values

    def reduce(self, statistics: Statistics) -> Statistics:
        """All ranks' statistics merged, by all-reduce with MAX and SUM. Raises HvdcError."""
        if self.world == 1:
            return statistics
        device = self._collective_device()

        def all_reduce(array: Any, op: Any) -> Any:
            tensor = torch.tensor(array, device=device)
            _together(lambda: dist.all_reduce(tensor, op))
            return tensor.cpu().numpy()

        return Statistics(
            statistics.inputs,
            statistics.outputs,
            {name: all_reduce(a, dist.ReduceOp.MAX) for name, a in statistics.channel_absmax.items()},
            all_reduce(statistics.histogram, dist.ReduceOp.SUM),
            all_reduce(statistics.output_absmax, dist.ReduceOp.MAX),
        )

    def leave(self) -> None:
        """End the group."""
        if self.world > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def _collective_device(self) -> torch.device:
        return self.device if dist.get_backend() == "nccl" else torch.device("cpu")


def join(device: str) -> Ranks:
    """This process's place, from the environment that `torchrun` sets, and its device. Raises UsageError, HvdcError."""
    world = world_size()
    rank, local = _number("RANK", 0), _number("LOCAL_RANK", 0)
    chosen = _device(device, local)
    if world > 1:
        backend = "nccl" if chosen.type == "cuda" else "gloo"
        timeout = datetime.timedelta(seconds=_number("HVDC_RANK_TIMEOUT_S", TIMEOUT_S))
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)
        _together(lambda: dist.init_process_group(backend, rank=rank, world_size=world, timeout=timeout))
    return Ranks(rank, world, local, chosen)


def world_size() -> int:
    """How many processes `torchrun` started; 1 without it. Raises UsageError."""
    return _number("WORLD_SIZE", 1)


def _device(device: str, local_rank: int) -> torch.device:
    """``cpu``, ``cuda`` (each rank its own) or ``cuda:N``. Raises UsageError."""
    if device == "cpu":
        return torch.device("cpu")
    if device != "cuda" and not (device.startswith("cuda:") and device[5:].isdigit()):
        raise UsageError("there is no such device", expected="cpu, cuda or cuda:N", found=device)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    number = local_rank if device == "cuda" else int(device[5:])
    if number >= count:
        raise UsageError(
            f"this machine has no GPU number {number} that PyTorch can use" if count else "PyTorch sees no GPU here",
            where=f"--device {device}",
            found=f"{count} GPUs",
            fix="--device cpu" if not count else f"start at most {count} processes, or give a smaller number",
        )
    return torch.device("cuda", number)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdigit():
        raise UsageError(f"the environment variable {name} is not a whole number", found=text, fix=f"unset {name}")
    return int(text)


def _together(collective: Callable[[], Any]) -> None:
    try:
        collective()
    except (RuntimeError, ValueError) as error:  # torch raises these, and DistError, which is a RuntimeError
        raise HvdcError(
            "another process of this run was lost or could not be reached",
            found=str(error).strip().splitlines()[0][:200],
            fix="start the same command again with --resume: finished prompts are not run again",
        ) from error
