"""What of the runtime goes into an artifact."""

from __future__ import annotations

import hashlib

from device_runtime.sources import source_files, sources_sha256, sources_tar
from hvdc import __version__
from hvdc.artifact.runtime import LIST_NAME, SOURCES_NAME, Runtime, RuntimeFile


def runtime_files() -> dict[str, bytes]:
    """The files of the folder ``runtime/`` by name: the sources, and the list of all."""
    sources = source_files()
    archive = sources_tar(sources)
    entry = RuntimeFile(name=SOURCES_NAME, bytes=len(archive), sha256=hashlib.sha256(archive).hexdigest())
    listed = Runtime(hvdc=__version__, sources_sha256=sources_sha256(sources), sources=entry)
    return {SOURCES_NAME: archive, LIST_NAME: (listed.model_dump_json(indent=2) + "\n").encode("ascii")}
