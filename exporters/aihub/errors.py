"""The one error type of `exporters.aihub`. Nothing in this package has run against the real service."""

from __future__ import annotations

from exporters.qnn.errors import QnnError


class AiHubError(QnnError):
    """What Qualcomm AI Hub, its client or this package refuses; the phrases are those of `QnnError`.

    A job is named in ``where`` by its id and its page. After every such error the same call can be made again: jobs
    that were submitted and have not failed are taken up where they are. ``too_large`` as in `QnnError`: the toolchain's
    words for it stood in the message of a job that failed, or in its log.
    """
