"""The records of ``stream.bin``: what a runtime makes videos of, written by Python, read in place by C.

Header, videos, latents, embeddings follow each other without holes, each from a multiple of 64 bytes on, the gaps
zero. Latents are float32 ``[videos][tokens][latent_values]`` in the order of `quant.paths.host.to_tokens`, embeddings
float32 ``[prompts][text_tokens][text_width]``. Noise is torch's, drawn here: C never draws any.
"""

from __future__ import annotations

from hvdc.artifact.record import Field, Record

STREAM_NAME = "stream.bin"
MAGIC = b"HVDCSTR\x00"
VERSION = 1
ALIGN_BYTES = 64
MAX_VIDEOS = 100_000
"""A reader refuses more videos, or more prompts."""

HEADER = Record(
    "hvdc_stream_header",
    "First bytes of stream.bin.",
    (
        Field("magic", "u8", "'HVDCSTR', 0", 8),
        Field("version", "u32", "a reader refuses another one"),
        Field("header_bytes", "u32", "size of this header"),
        Field("total_bytes", "u64", "size of stream.bin"),
        Field("sha256", "u8", "SHA-256 of stream.bin with these 32 bytes zero", 32),
        Field("artifact_sha256", "u8", "index_sha256 of the artifact that it is made for", 32),
        Field("videos", "u32", "at least 1"),
        Field("prompts", "u32", "distinct ones, at least 1"),
        Field("tokens", "u32", "tokens of a latent"),
        Field("latent_values", "u32", "values of a token: patch volume * channels"),
        Field("text_tokens", "u32", "tokens of a prompt"),
        Field("text_width", "u32", "channels of a prompt's embedding"),
        Field("videos_offset", "u64", "of the table of videos, from the start of stream.bin"),
        Field("latents_offset", "u64", "of the initial latents"),
        Field("embeds_offset", "u64", "of the embeddings"),
    ),
)

VIDEO = Record(
    "hvdc_stream_video",
    "A video of the stream. Its number is its index in the table.",
    (
        Field("prompt", "u32", "index of its embeddings"),
        Field("reserved", "u32", "0"),
        Field("seed", "u64", "that its initial latent was drawn with; for people"),
    ),
)

RECORDS = (HEADER, VIDEO)
