"""Models are uploaded once: what the service has is remembered by id. It has not run against the real service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from exporters.aihub.progress import Progress, Say
from exporters.aihub.service import Service, status_code
from exporters.aihub.state import Run, run_key


def binary_run(state: Path, sha256: str, api_url: str) -> Run:
    """Where the id of a context binary is kept: it is the same for every job on it, and was noted by who compiled it.

    Raises:
        AiHubError: ``state`` is not a state file.
    """
    about = {"binary": sha256, "service": api_url}
    return Run(state, run_key(about), about)


def uploaded(service: Service, run: Run, slot: str, file: Callable[[], Path], say: Say) -> Any:
    """Inside `Service.call`: the service's model, of an earlier upload where it still has it.

    ``file`` gives what to upload, and is not called where nothing is.
    """
    known = run.upload(slot)
    if known:
        try:
            return service.client.get_model(known)
        except Exception as error:
            if status_code(error) != 404:
                raise
    path = file()
    say(Progress("upload", note=f"{slot}, {path.stat().st_size:,} bytes"))
    model = service.client.upload_model(str(path), name=f"hvdc {slot}")
    run.note_upload(slot, model.model_id)
    return model
