"""Trains the example model from nothing: one command on one GPU.

    python -m examples.moving_shapes.train --out build/moving_shapes

The stages can be run one by one (``--stages vae,teacher``, later ``--stages semantic,detail,evaluate``); each
saves under ``--out`` what the next ones need, in `model/` what is shipped and in `work/` what is not.
``--budget-s`` is a promise about wall time: the stages of this run share what is left of it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from examples.moving_shapes.dit import MovingShapesTransformer, compile_blocks
from examples.moving_shapes.evaluate import (
    check_all,
    decode_in_parts,
    evaluate,
    evaluation_rows,
    exact_fp32,
    print_header,
    print_row,
    real_clips,
)
from examples.moving_shapes.generate import (
    load_transformer,
    load_vae,
    save_transformer,
    save_vae,
    seeded_noise,
)
from examples.moving_shapes.loop import Recipe, log
from examples.moving_shapes.shapes import prompt_embeddings, save_prompts
from examples.moving_shapes.train_experts import teacher_path, train_detail, train_semantic, train_teacher
from examples.moving_shapes.train_vae import encode_random, psnr, train_vae

CROPS_SHARE = 0.57
"""Of the VAE's time. The rest is for whole clips."""

LEAST_RECONSTRUCTION_AGREEMENT = 0.95
"""Below it the VAE has failed, and everything trained on its latents would be wasted: losses don't show it."""

CACHED_CLIPS = 32_768
SEMANTIC_PATHS = 16_384
DETAIL_PATHS = 24_576


@dataclass(frozen=True)
class Share:
    """Seconds that a stage trains when there is no budget, and about what it needs besides (an H200's)."""

    training: float
    besides: float


STAGES = {
    "vae": Share(160, 60),
    "teacher": Share(620, 60),
    "semantic": Share(80, 65),
    "detail": Share(145, 40),
    "evaluate": Share(0, 40),
}


class Trainer:
    def __init__(
        self,
        out: Path,
        stages: list[str],
        device: torch.device,
        *,
        budget_s: float | None = None,
        resume: bool = False,
        smoke: bool = False,
    ) -> None:
        self.out, self.stages, self.device, self.resume, self.smoke = out, stages, device, resume, smoke
        self.model, self.work = out / "model", out / "work"
        self.max_steps = 4 if smoke else 10**9
        self.started = time.monotonic()
        self.budget_s = budget_s

    def seconds(self, stage: str) -> float:
        """What this stage may train for: its share of what the budget leaves after everything else."""
        share = STAGES[stage]
        if self.budget_s is None:
            return share.training
        left = [STAGES[s] for s in self.stages[self.stages.index(stage) :]]
        free = self.started + self.budget_s - time.monotonic() - sum(s.besides for s in left)
        return max(5.0, free * share.training / sum(s.training for s in left))

    def run(self) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        save_prompts(self.model / "prompts.safetensors")
        stages: dict[str, Callable[[], None]] = {
            "vae": self.vae,
            "teacher": self.teacher,
            "semantic": self.semantic,
            "detail": self.detail,
            "evaluate": self.evaluate,
        }
        for stage in self.stages:
            log(f"== {stage}, {time.monotonic() - self.started:.0f} s after the start")
            stages[stage]()
        log(f"== done after {time.monotonic() - self.started:.0f} s")

    def vae(self) -> None:
        seconds = self.seconds("vae")
        phases = (CROPS_SHARE * seconds, (1 - CROPS_SHARE) * seconds)
        latent_vae = train_vae(self.device, phases, self.max_steps, small=self.smoke)
        save_vae(self.model / "vae", latent_vae)
        rows = evaluation_rows(4 if self.smoke else 256)
        latent_vae = load_vae(self.model / "vae", self.device)
        real = real_clips(rows, self.device)
        with torch.no_grad():
            latents = torch.cat([latent_vae.encode(part) for part in real.split(16)])
            decoded = decode_in_parts(latent_vae, latents)
        result = check_all(decoded, rows)
        log(f"  reconstruction {psnr(torch.from_numpy(decoded).float() / 255, real.cpu()):.1f} dB")
        print_header()
        print_row("VAE reconstruction", result)
        if result["all"] < LEAST_RECONSTRUCTION_AGREEMENT and not self.smoke:
            raise SystemExit(
                f"the VAE failed: {result['all']:.3f} of its reconstructions show what they should, "
                f"{LEAST_RECONSTRUCTION_AGREEMENT} are needed. Give it more time (--budget-s) or another seed; "
                "the stages after it cannot mend it."
            )

    def teacher(self) -> None:
        latent_vae = load_vae(self.model / "vae", self.device)
        generator = torch.Generator(self.device).manual_seed(8)
        started = time.monotonic()
        latents, scenes = encode_random(latent_vae, generator, 8 if self.smoke else CACHED_CLIPS)
        log(f"  {len(latents)} clips encoded in {time.monotonic() - started:.1f} s")
        recipe = Recipe(self.seconds("teacher"), 1e-3, self.max_steps, warm_steps=300, ema=0.999, name="teacher")
        start = self.load_teacher(compiled=False) if self.resume else None
        teacher = train_teacher(latents, scenes, recipe, start, small=self.smoke)
        # In two files of fp32, for places that limit a file's size.
        state = {name: v.detach().cpu().contiguous() for name, v in teacher.state_dict().items() if "lora" not in name}
        names = sorted(state)
        for part in range(2):
            save_file({n: state[n] for n in names[part::2]}, self.work / f"teacher-{part}.safetensors")
        rows = evaluation_rows(2 if self.smoke else 256)
        text = prompt_embeddings()[rows].to(self.device)
        made = teacher_path(teacher, seeded_noise(range(len(rows))).to(self.device), text)[-1]
        print_header()
        print_row("teacher, 50 steps with guidance", check_all(decode_in_parts(latent_vae, made), rows))

    def load_teacher(self, *, compiled: bool) -> MovingShapesTransformer:
        teacher = MovingShapesTransformer()
        for part in range(2):
            teacher.load_state_dict(load_file(self.work / f"teacher-{part}.safetensors"), strict=False)
        teacher = teacher.to(self.device).eval()
        if compiled and self.device.type == "cuda":
            compile_blocks(teacher)
        return teacher

    def semantic(self) -> None:
        recipe = Recipe(self.seconds("semantic"), 1e-3, self.max_steps, name="semantic expert")
        teacher = self.load_teacher(compiled=True)
        model = train_semantic(teacher, 4 if self.smoke else SEMANTIC_PATHS, recipe, small=self.smoke)
        save_transformer(self.work / "semantic", model)

    def detail(self) -> None:
        teacher = self.load_teacher(compiled=True)
        semantic = load_transformer(self.work / "semantic", self.device)
        recipe = Recipe(self.seconds("detail"), 1e-3, self.max_steps, weight_decay=0.01, name="detail expert")
        count = 4 if self.smoke else DETAIL_PATHS
        student = train_detail(semantic, teacher, count, recipe, small=self.smoke)
        save_transformer(self.model / "transformer", student)

    def evaluate(self) -> None:
        teacher = self.load_teacher(compiled=False) if (self.work / "teacher-0.safetensors").is_file() else None
        evaluate(self.model, self.device, 2 if self.smoke else 256, self.out, teacher)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stages", default=",".join(STAGES), help="some of %(default)s, in this order")
    parser.add_argument("--budget-s", type=float, help="seconds of wall time that this run may take")
    parser.add_argument("--resume-teacher", action="store_true", help="stage teacher goes on from the saved one")
    parser.add_argument("--smoke", action="store_true", help="a few tiny steps of everything, to try the code")
    args = parser.parse_args()
    stages = args.stages.split(",")
    if not set(stages) <= set(STAGES):
        parser.error(f"stages are {', '.join(STAGES)}")
    if not torch.cuda.is_available() and not args.smoke:
        parser.error("training needs a CUDA GPU; --smoke runs a few steps of everything on any machine")
    exact_fp32()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    log(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name() if device.type == 'cuda' else 'CPU'}")
    trainer = Trainer(args.out, stages, device, budget_s=args.budget_s, resume=args.resume_teacher, smoke=args.smoke)
    trainer.run()


if __name__ == "__main__":
    main()
