"""What can go wrong between this machine and a device."""

from __future__ import annotations

from hvdc.errors import Exit, HvdcError


class DeviceError(HvdcError):
    """A device, or the way to it, that cannot be used. ``log``: what it said beside its answer."""

    exit_status = Exit.DEVICE

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        expected: str = "",
        found: str = "",
        fix: str = "",
        log: tuple[str, ...] = (),
    ) -> None:
        super().__init__(what, where=where, expected=expected, found=found, fix=fix)
        self.log = log


class LinkError(DeviceError):
    """The device went away, or the link was cut: the same work may succeed once it is back."""


class NoAnswerError(LinkError):
    """A device that is there answers nothing that can be read, as also a link does that is cut at the wrong moment."""
