"""The outside world becomes canonical: checkpoints, adapters, schedules, prompts, decoders."""
