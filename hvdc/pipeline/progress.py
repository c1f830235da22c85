"""Progress of the stages; see `hvdc.progress`, which others share."""

from hvdc.progress import Progress as Progress
from hvdc.progress import Silent as Silent
