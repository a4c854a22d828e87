"""What a step draws and how large its step is; a function of the seed and the step alone, so that runs can resume."""

from __future__ import annotations

import hashlib
import math
import struct

import torch

from specforge.training.config import Optimization


def generator(seed: int, purpose: str, *numbers: int) -> torch.Generator:
    """Return the generator of one purpose at one place, such as a step; there is no other source of randomness."""
    key = struct.pack(f"<{len(numbers) + 1}q", seed, *numbers) + purpose.encode()
    bits = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
    return torch.Generator().manual_seed(bits >> 1)


def chats_of_step(seed: int, step: int, batch_size: int, count: int) -> list[int]:
    """Return which of ``count`` chats a step takes: shuffled anew every pass over the data, none left out."""
    places = range(step * batch_size, (step + 1) * batch_size)
    orders = {
        epoch: torch.randperm(count, generator=generator(seed, "order", epoch))
        for epoch in {place // count for place in places}
    }
    return [int(orders[place // count][place % count]) for place in places]


def learning_rate(options: Optimization, step: int, share_done: float) -> float:
    """Return the rate of a step: a linear warm-up times a cosine of the share of the run that is done."""
    warm = min(1.0, (step + 1) / (options.warmup + 1))
    cosine = 0.5 * (1.0 + math.cos(math.pi * min(share_done, 1.0)))
    return options.learning_rate * warm * (options.final_share + (1.0 - options.final_share) * cosine)
