"""Jobs are submitted once, found again, and waited for. Nothing here has run against the real service.

A connection may drop after the service took a job and before its id arrived. A job therefore has a name of its own,
and before a submission is tried again the service is asked whether it has a job of that name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from exporters.aihub.errors import AiHubError
from exporters.aihub.options import Waiting
from exporters.aihub.progress import JobState, Progress, Say
from exporters.aihub.service import Service, status_code
from exporters.aihub.state import Known, Run

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
            AiHubError: a job failed, the limit was reached, or the service cannot be reached.
        """
        begun, pause = time.monotonic(), self._waiting.poll_s
        while True:
            states = []
            done = True
            for slot, job in jobs.items():
                status = self._service.call(step, f"asking for job {job.job_id}", job.get_status, job.url)
                if status.failure:
                    self._run.forget_job(slot)
                    raise AiHubError(
                        f"Qualcomm AI Hub's job failed: {slot}",
                        where=f"job {job.job_id}, {job.url}",
                        found=status.message or "no message",
                        fix="read the job's page; the next run submits this job again",
                    )
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
