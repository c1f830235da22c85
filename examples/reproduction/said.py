"""Sentences of the paper that state figures but no rates; the others are in `examples.rates.derive`."""

from __future__ import annotations

from examples.rates.derive import Said

TOKENS = Said(
    "6.1",
    "We vary the clip length over 49, 33, 25 and 17 frames, which sets the token count to M=20,280, 14,040, 10,920 and "
    "7,800 while the number of block executions per video stays B=N·L=180.",
)
SLO = Said("6.1", "The SLO is a per-video deadline of 1.5× the NPU-only single-video latency at the same workload.")
ORDER = Said(
    "6.2",
    "Naive data parallelism comes closest on throughput and loses on the SLO axis. It reaches 1.32–1.42×, 0.6–6.4% "
    "behind HeteroVDiff at the four workloads.",
)
NPU_RATE = Said("6.2", "That is the NPU-only rate, 3.9 videos per hour against HeteroVDiff's 5.3.")
GPU_ONLY = Said("6.2", "GPU-only completes at 0.35–0.48×.")
CLEARS = Said(
    "6.5 (SLO sensitivity)",
    "Figure 7 sweeps the deadline factor f from 1.25 to 3 … HeteroVDiff therefore clears every deadline in the sweep",
)
PARAMETERS = Said(
    "2.1",
    "The semantic expert is a 1,419 M shared base. The detail expert adds a rank-128 LoRA on the attention projections "
    "(94.4 M) and its own timestep-embedding block (25.6 M), and it takes over from step index κ=3 of six fixed "
    "timesteps.",
)
FP16_COPY = Said("3.2", "one engine-native FP16 copy occupies 2.82 GB and two copies occupy 5.64 GB")
HOLDS = Said(
    "6.3",
    "HeteroVDiff holds 1.47 GiB of weights. Data parallelism holds two artifacts, 2.83 GiB. One copy per engine needs "
    "3.71 GiB in merged INT8 and 5.25 GiB in FP16.",
)
ADDING = Said("6.3", "Adding the GPU to NPU-only therefore costs only 26.3 MiB.")
PRIVATE = Said("6.3", "A GPU that loaded the same weights from the file would hold a private copy of about 540 MB.")
EACH_BLOCK = Said(
    "6.3",
    "The factorised expert representation stores each DiT block once in 47.3 MiB, so the dual-expert artifact is 1.39 "
    "GiB.",
)
PARTS = Said(
    "6.3",
    "Of that 1,423 MiB the attention base is 541.4 MiB, the feed-forward pair 787.5 MiB, the scales 2.6 MiB and the "
    "rank-128 factors 91.5 MiB. The NPU's FP16 copy of one block's feed-forward pair adds 52.5 MiB. Merging the detail "
    "expert into a second attention copy would take 1.83 GiB and one FP16 copy per engine 2.82 GB (§3.2).",
)
BUFFERS = Said(
    "6.3",
    "Working buffers add about 0.4 GiB. Two hidden-state carriers each hold 59.4 MiB in FP16 for a 49-frame clip. The "
    "GPU's de-fused attention keeps one 256-row block of scores and probabilities, 178 MiB at M=20,280, growing with M "
    "rather than M². The hand-off writes the hidden state and latent once per video, 130 MB. HeteroVDiff needs about "
    "1.9 GiB at steady state",
)
