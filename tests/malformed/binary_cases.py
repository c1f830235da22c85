"""Damaged records of what a decoder's binaries were compiled for."""

from __future__ import annotations

import json
from functools import partial

import numpy as np

from hvdc.artifact import records
from hvdc.artifact.codes import Code
from hvdc.artifact.records import NONE
from tests.index_edit import appended
from tests.malformed.registry import NEWER, both, setter, without
from tests.malformed.registry import index_case as any_index_case
from tests.malformed.registry import manifest_case as any_manifest_case

BINARIES = "base-binaries"
SHARED, ALONE = 0, 1

index_case = partial(any_index_case, base=BINARIES)
fault = partial(index_case, Code.INDEX_DECODER)

index_case(Code.OK, "sound-binaries", lambda e: None)
index_case(Code.INDEX_SECTION, "binaries-section-missing", without("binaries"))
index_case(Code.INDEX_SECTION, "binaries-section-in-version-1.2", lambda e: setattr(e, "minor", 2))
index_case(Code.INDEX_SECTION, "binaries-section-without-the-decoders-feature", both(
    without("decoder", "graphs", "ports"), lambda e: setattr(e, "features", 0),
))  # fmt: skip
fault("binary-record-lost", lambda e: setattr(e, "binaries", e.binaries[:1]))
fault("binary-records-none", lambda e: setattr(e, "binaries", e.binaries[:0]))
fault("binary-record-twice", lambda e: setattr(e, "binaries", e.binaries[[SHARED, ALONE, ALONE]]))
fault("binary-records-exchanged", lambda e: setattr(e, "binaries", e.binaries[[ALONE, SHARED]]))
fault("binary-record-of-the-other-binary", setter("binaries", "binary", ALONE, lambda e: e.binaries["binary"][SHARED]))
fault("binary-record-of-no-tensor", setter("binaries", "binary", SHARED, NONE))
fault("binary-record-of-the-encodings", setter("binaries", "binary", SHARED, lambda e: e.decoder["encodings"][0]))
index_case(Code.INDEX_STRING, "build-outside", setter("binaries", "build_id", ALONE, NONE))
for name, text in {
    "with-a-space": b"v2 51", "empty": b"", "not-text": b"v2\xff", "too-long": b"x" * (records.TEXT_LIMIT + 1)
}.items():  # fmt: skip
    change = setter("binaries", "build_id", SHARED, lambda e, text=text: e.text(text))
    index_case(Code.INDEX_STRING, f"build-{name}", change)
for field, value in (("soc", 57), ("arch", 75)):
    index_case(
        Code.MANIFEST_INDEX, f"binary-of-another-{field}", setter("binaries", field, SHARED, value),
        only_python="C cannot know better than the index: the runtime compares it with the binary itself",
    )  # fmt: skip
index_case(
    Code.MANIFEST_INDEX, "fields-appended-to-binaries", lambda e: setattr(e, "binaries", appended(e.binaries, 8)),
    only_python=NEWER,
)  # fmt: skip
index_case(Code.INDEX_SECTION, "binary-records-too-small", lambda e: setattr(
    e, "binaries", np.frombuffer(e.binaries.tobytes()[:16], np.dtype((np.void, 8))),
))  # fmt: skip


def other_build(text: bytes) -> bytes:
    """A manifest of binaries by a build that cannot stand in an index."""
    tree = json.loads(text)
    tree["decoder"]["binaries"][0]["build_id"] = "v2 51"
    return json.dumps(tree).encode("ascii")


any_manifest_case(Code.MANIFEST_SCHEMA, "binary-by-a-build-with-a-space", other_build, base=BINARIES)
