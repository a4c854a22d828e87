"""From a config to a trainer: load, check, and pick up where a run stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from specforge.errors import ConfigError
from specforge.target import Target, load_target
from specforge.training.architecture import drafter_config, new_model
from specforge.training.chats import Chat, load_chats, split
from specforge.training.config import TrainConfig
from specforge.training.devices import Accelerated, Devices, OneDevice
from specforge.training.features import FeatureCache, FeatureSource, OnTheFly
from specforge.training.rundir import RunFolder
from specforge.training.schedule import chats_of_step
from specforge.training.trainer import Trainer
from specforge.training.vocabulary import SoftmaxVocabulary, most_frequent


def prepare(config: TrainConfig, *, resume: bool = False, distributed: bool = False) -> Trainer:
    """Return a trainer that is ready to run.

    Args:
        config: the run.
        resume: go on where the run in ``config.out`` stopped.
        distributed: be one of the processes that ``accelerate launch`` started.

    Raises:
        ConfigError: for values that cannot be used, or a folder that does not fit.
        UnsupportedTargetError: for a target that cannot be used.
    """
    devices: Devices = OneDevice()
    device = config.device
    if distributed:
        joined = Accelerated.join(config.device)
        devices, device = joined, str(joined.device)
    target = load_target(config.target, dtype=config.dtype, device=device)
    drafter = drafter_config(config.architecture, target)
    copied = config.architecture.copied_layers
    model = new_model(drafter, config.optimization.seed, target, copied, config.initial).to(target.device)
    chats = load_chats(config.data.chats, target, config.data.max_tokens)
    training, held_out = split(chats, config.data.held_out, config.data.limit)
    objective = config.objective
    common = most_frequent([chats[i] for i in training], objective.softmax_tokens, target.vocab_size)
    folder = RunFolder(Path(config.out))
    if devices.rank == 0:
        folder.start(config.to_dict(), resume)
    devices.wait()
    trainer = Trainer(
        config,
        drafter,
        target,
        chats,
        training,
        held_out,
        feature_source(config, target, chats),
        model,
        SoftmaxVocabulary(common.to(target.device), target.vocab_size, objective.sampled_tokens),
        folder,
        devices,
    )
    if resume:
        trainer.restore(folder.load_state())
    return trainer


def feature_source(config: TrainConfig, target: Target, chats: list[Chat]) -> FeatureSource:
    """Return the feature cache, or, where there is to be none, the target itself."""
    source = OnTheFly(target, chats, config.architecture.taps, min(config.data.top_k, target.vocab_size))
    return source if config.data.cache is None else FeatureCache(config.data.cache, source)


def fill_cache(config: TrainConfig, watch: Callable[[int, int], None] = lambda _done, _of: None) -> FeatureCache:
    """Compute the features that are missing in the run's cache, in the order in which training will want them.

    Args:
        config: the run; it must name a cache.
        watch: called with how many chats are done, of how many.

    Raises:
        ConfigError: when the run has no cache, or its cache is another's.
    """
    if config.data.cache is None:
        raise ConfigError("cache is None; name a folder to fill")
    target = load_target(config.target, dtype=config.dtype, device=config.device)
    chats = load_chats(config.data.chats, target, config.data.max_tokens)
    cache = feature_source(config, target, chats)
    assert isinstance(cache, FeatureCache)
    training, held_out = split(chats, config.data.held_out, config.data.limit)
    order = [
        *held_out,
        *(training[i] for i in chats_of_step(config.optimization.seed, 0, len(training), len(training))),
    ]
    missing = set(cache.missing())
    for index in order:
        if index in missing:
            cache(index)
            watch(cache.filled, len(chats))
    return cache
