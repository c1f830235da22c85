"""Jobs are submitted once, found again, and waited for. Nothing here has run against the real service.

A connection may drop after the service took a job and before its id arrived. A job therefore has a name of its own,
and before a submission is tried again the service is asked whether it has a job of that name.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from exporters.aihub.errors import AiHubError
from exporters.aihub.options import Waiting
from exporters.aihub.progress import JobState, Progress, Say
from exporters.aihub.service import Service, status_code
from exporters.aihub.state import Known, Run
from exporters.qnn import messages

_RECENT = 100
"""Jobs among which one with a lost answer is looked for: it was submitted a moment ago, or by the run before."""


class Jobs:
    """The jobs of one run. ``slot`` names what a job is for, such as ``compile first``."""

    def __init__(self, service: Service, run: Run, waiting: Waiting, say: Say) -> None:
        self._service = service
        self._run = run
        self._waiting = waiting
        self._say = say

    def start(self, step: str, slot: str, submit: Callable[[str], Any]) -> Any:
        """The client's job object: the one that is remembered, or a new one that ``submit`` makes under a name."""
        client = self._service.client
        known = self._run.job(slot)
        if known and known.job_id:
            job_id = known.job_id
            job = self._service.call(step, f"asking for job {job_id}", lambda: self._get(job_id), known.url)
            if job is not None:
                return job
            self._say(Progress(step, note=f"{slot}: job {job_id} is gone, it is submitted again"))
            self._run.forget_job(slot)
            known = None
        name = known.name if known else f"hvdc {self._run.key[:12]} {slot}"
        asked = known is not None
        self._run.note_job(slot, Known(name))

        def attempt() -> Any:
            nonlocal asked
            if asked:
                for one in client.get_job_summaries(limit=_RECENT):
                    if one.name == name and not one.status.failure:
                        return client.get_job(one.job_id)
            asked = True
            return submit(name)

        job = self._service.call(step, f"submitting {slot}", attempt)
        self._run.note_job(slot, Known(name, job.job_id, job.url))
        return job

    def wait(self, step: str, jobs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns when all have succeeded, each as the service has it then.

        Raises:
            AiHubError: a job failed, ``too_large`` where the toolchain said so; the limit was reached, or the service
            cannot be reached.
        """
        begun, pause = time.monotonic(), self._waiting.poll_s
        while True:
            states = []
            done = True
            for slot, job in jobs.items():
                status = self._service.call(step, f"asking for job {job.job_id}", job.get_status, job.url)
                if status.failure:
                    self._run.forget_job(slot)
                    raise _failed(slot, job, status.message or "", self._log(step, job))
                states.append(JobState(slot, job.job_id, job.url, status.code))
                done &= status.success
            waited = time.monotonic() - begun
            self._say(Progress(step, tuple(states), waited, 0.0 if done else pause))
            if done:
                break
            if waited >= self._waiting.limit_s:
                raise self._too_long(states, waited)
            time.sleep(min(pause, max(self._waiting.limit_s - waited, 0.01)))
            pause = self._waiting.longer(pause)
        # the model that a job makes may be known only after its end
        return {
            slot: self._service.call(step, f"asking for job {job.job_id}", self._again(job))
            for slot, job in jobs.items()
        }

    def _log(self, step: str, job: Any) -> list[str]:
        """Lines of the logs of a job that failed; none where there are none to be had: that it failed matters more."""
        what = f"downloading the log of job {job.job_id}"
        with tempfile.TemporaryDirectory(prefix="hvdc-") as folder:
            try:
                paths = self._service.call(step, what, lambda: job.download_job_logs(folder), job.url)
                return [line for path in paths for line in Path(path).read_text("utf-8", "replace").splitlines()]
            except (AiHubError, OSError) as error:
                self._say(Progress(step, note=f"no log of job {job.job_id}: {error}"))
                return []

    def _again(self, job: Any) -> Callable[[], Any]:
        return lambda: self._service.client.get_job(job.job_id)

    def _get(self, job_id: str) -> Any:
        """A job, or None when the service has none of that id."""
        try:
            return self._service.client.get_job(job_id)
        except Exception as error:
            if status_code(error) == 404:
                return None
            raise

    def _too_long(self, states: list[JobState], waited: float) -> AiHubError:
        running = [state for state in states if state.state != "SUCCESS"]
        return AiHubError(
            "Qualcomm AI Hub did not finish in time",
            where="; ".join(f"{s.name}: job {s.job_id}, {s.url}" for s in running),
            expected=f"the end of {'the job' if len(running) == 1 else 'all jobs'} within {self._waiting.limit_s:g} s",
            found=", ".join(f"{s.job_id} is {s.state}" for s in running) + f" after {waited:.0f} s",
            fix="run the same command again: it goes on waiting for the same jobs",
        )


def _failed(slot: str, job: Any, said: str, log: Sequence[str]) -> AiHubError:
    """The toolchain's own lines, among the service's, say whether a smaller graph would do."""
    where = f"job {job.job_id}, {job.url}"
    explained = messages.explain(said, (*said.splitlines(), *log), slot, where)
    if explained.too_large:
        return AiHubError(
            f"Qualcomm AI Hub's job failed: {slot}: {explained.what}",
            where=explained.where,
            expected=explained.expected,
            found=explained.found,
            fix=explained.fix,
            log=explained.log,
            too_large=True,
        )
    return AiHubError(
        f"Qualcomm AI Hub's job failed: {slot}",
        where=where,
        found=said or "no message",
        fix="read the job's page; the next run submits this job again",
        log=tuple(log),
    )
