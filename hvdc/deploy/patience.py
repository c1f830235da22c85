"""What is done on a device is done again after a cut link: it is waited for, and the same work is repeated."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from hvdc.deploy.adb import AdbDevice
from hvdc.deploy.errors import LinkError, NoAnswerError

T = TypeVar("T")

WAIT_S = 120.0
"""How long a device that was lost is waited for."""
LOSSES = 30
"""How often a device may be lost, and come back, in one piece of work."""
UNREAD = 6
"""How often one after the other it may answer nothing that can be read."""


class Patience:
    """Shared by the threads that work on one device. ``before``: comes before every attempt, such as taking a lock."""

    def __init__(
        self,
        device: AdbDevice,
        say: Callable[[str], None],
        wait_s: float = WAIT_S,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self.losses = 0
        self.before = before
        self._device, self._say, self._wait_s = device, say, wait_s
        self._recovering = threading.Lock()
        self._is_gone = False
        self._given_up = threading.Event()

    def __call__(self, work: Callable[[], T], times: int = LOSSES) -> T:
        """Do it, again each time the device was lost and came back; it must bear that.

        Raises LinkError when it does not come back, or is lost again and again; whatever else ``work`` raises.
        """
        unread = 0
        for attempt in range(times - 1):
            try:
                with self._recovering:
                    self.before()
                return work()
            except LinkError as error:
                unread = unread + 1 if isinstance(error, NoAnswerError) else 0
                if unread == UNREAD:
                    raise
                time.sleep(min(0.02 * 2 ** min(attempt, 10), 0.2))
                if not self._comes_back(error):
                    raise
        self.before()
        return work()

    def give_up(self) -> None:
        """Whoever waits for the device, in whichever thread, ends now: the person does not want to wait any more."""
        self._given_up.set()

    def _comes_back(self, error: LinkError) -> bool:
        with self._recovering:  # one thread waits for all
            self.losses += 1
            if not self._is_gone and not self._given_up.is_set():
                self._say(f"the device was lost ({error.found}): it is waited for, up to {self._wait_s:g} s")
                self._is_gone = not self._device.wait(self._wait_s, self._given_up)
            return not self._is_gone and not self._given_up.is_set()
