"""From a configuration to parts that are known to work together, or one line that says why they do not."""

from __future__ import annotations

import inspect
import logging
from typing import Any, TypeVar

import attrs
from attrs import frozen

from specforge import registry
from specforge.checkpoints import open_checkpoint
from specforge.checkpoints.bundled import BUNDLED_DRAFTER, BUNDLED_DRAFTER_KIND
from specforge.config import AUTO, PartConfig, PipelineConfig
from specforge.errors import ConfigError, IncompatiblePartsError, SpecforgeError, suggest
from specforge.interfaces import SCORES, Capabilities, Drafter, Part, Scorer, TreeBuilder, Verifier
from specforge.registry import Registry
from specforge.sampling import SamplingParams
from specforge.target.bundled import BUNDLED_TARGET

logger = logging.getLogger("specforge")

P = TypeVar("P", bound=Part)


@frozen(eq=False)
class Parts:
    """The four parts of a pipeline; ``verifier`` is ``None`` for ``auto``, which each generation resolves."""

    drafter: Drafter
    scorer: Scorer
    builder: TreeBuilder
    verifier: Verifier | None

    def verifier_for(self, sampling: SamplingParams) -> Verifier:
        """Return the verifier to use.

        Raises:
            ConfigError: when the configured verifier cannot serve these sampling options.
        """
        verifier = self.verifier
        if verifier is None:
            verifier = registry.verifiers.get("greedy" if sampling.greedy else "sampling")()
        verifier.check(sampling)
        return verifier


def make_part(registry_: Registry[P], config: PartConfig) -> P:
    """Look the class up and construct it from its options.

    Raises:
        UnknownNameError: for an unregistered name.
        ConfigError: for an option the class does not take, a missing one, or a value it refuses.
    """
    cls = registry_.get(config.name)
    known = _options(cls)
    what = f"{registry_.kind} {config.name!r}"
    for option in config.options:
        if known is not None and option not in known:
            raise ConfigError(f"{what} has no option {option!r}{suggest(option, known)}")
    missing = [o for o, p in (known or {}).items() if p.default is p.empty and o not in config.options]
    if missing:
        raise ConfigError(f"{what} needs the option {missing[0]!r}")
    try:
        return cls(**config.options)
    except SpecforgeError:
        raise
    except Exception as error:  # a part may be foreign code: whatever its constructor raises is about its options
        raise ConfigError(f"{what}: {type(error).__name__}: {error}") from error


def _options(cls: type) -> dict[str, inspect.Parameter] | None:
    parameters = inspect.signature(cls).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return None
    return {n: p for n, p in parameters.items() if p.kind is not p.VAR_POSITIONAL}


def assemble(config: PipelineConfig, drafter: Drafter | None = None) -> Parts:
    """Construct the four parts and check that each finds what it needs.

    Args:
        config: what to construct.
        drafter: one to use in place of the config's.

    Raises:
        ConfigError: for names and options (see ``make_part``).
        IncompatiblePartsError: when a need is not met, naming the parts that would meet it.
    """
    drafter = make_part(registry.drafters, config.drafter) if drafter is None else drafter
    scorer = make_part(registry.scorers, _or(config.scorer, drafter.default_scorer))
    builder_name = "chain" if SCORES in scorer.given() else "none"
    builder = make_part(registry.builders, _or(config.builder, builder_name))
    auto = config.verifier.name == AUTO
    if auto and config.verifier.options:
        raise ConfigError(f"verifier 'auto' takes no options; got {dict(config.verifier.options)!r}")
    verifier = None if auto else make_part(registry.verifiers, config.verifier)
    chain: list[tuple[Registry[Any], Part]] = [(registry.drafters, drafter), (registry.scorers, scorer)]
    _check(registry.drafters, drafter, [])
    _check(registry.scorers, scorer, chain[:1])
    _check(registry.builders, builder, chain)
    if drafter.given() and not builder.needed():
        name = registry.drafters.name_of(drafter)
        raise IncompatiblePartsError(
            f"builder {registry.builders.name_of(builder)!r} uses nothing that drafter {name!r} gives; "
            f"choose a scorer and a builder, or drafter 'none' for plain decoding"
        )
    if verifier is not None:
        _check(registry.verifiers, verifier, [(registry.builders, builder)])
    return Parts(drafter, scorer, builder, verifier)


def takes_checkpoint(config: PipelineConfig) -> bool:
    """Return whether the configured drafter reads a checkpoint."""
    options = _options(registry.drafters.get(config.drafter.name))
    return options is None or "checkpoint" in options


def with_checkpoint(
    config: PipelineConfig, checkpoint: str, kind: str | None = None, name: str | None = None
) -> PipelineConfig:
    """Return a copy whose drafter reads ``checkpoint``; one of another kind that can ignore its head does, and says so.

    Args:
        config: the pipeline.
        checkpoint: what to read.
        kind: the kind of drafter that it was made for; ``None`` looks it up where it matters.
        name: what the log calls the pipeline; ``None``: by its drafter.

    Raises:
        ConfigError: when the drafter reads none.
        CheckpointError: when the checkpoint cannot be read.
    """
    if not takes_checkpoint(config):
        raise ConfigError(f"drafter {config.drafter.name!r} reads no checkpoint; got {checkpoint!r}")
    drafter = registry.drafters.get(config.drafter.name)
    config = with_drafter_options(config, checkpoint=checkpoint)
    wanted = getattr(drafter, "kind", None)
    if wanted is None or "ignore_head" not in option_names(drafter):
        return config
    kind = open_checkpoint(checkpoint).config.kind if kind is None else kind
    if kind == wanted:
        return config
    name = config.drafter.name if name is None else name
    logger.warning("%s drafts with the backbone of %s alone; its %s head is ignored", name, checkpoint, kind)
    return with_drafter_options(config, ignore_head=True)


def with_bundled_drafter(config: PipelineConfig, target: str) -> PipelineConfig:
    """Return a copy that drafts with the bundled drafter, if ``target`` is what it was made for.

    This is for drafters that need a checkpoint and were given none: one of the bundled drafter's kind, or one that
    can ignore its head. Any other config is returned as it is.

    Args:
        config: the pipeline.
        target: the name of the target that will run.
    """
    drafter = registry.drafters.get(config.drafter.name)
    options = _options(drafter) or {}
    needs = "checkpoint" in options and options["checkpoint"].default is inspect.Parameter.empty
    if target != BUNDLED_TARGET or not needs or "checkpoint" in config.drafter.options:
        return config
    if getattr(drafter, "kind", None) != BUNDLED_DRAFTER_KIND and "ignore_head" not in options:
        return config
    return with_checkpoint(config, BUNDLED_DRAFTER, BUNDLED_DRAFTER_KIND)


def with_drafter_options(config: PipelineConfig, **options: Any) -> PipelineConfig:
    """Return a copy whose drafter has these options too."""
    drafter = attrs.evolve(config.drafter, options={**config.drafter.options, **options})
    return attrs.evolve(config, drafter=drafter)


def _or(config: PartConfig, default: str) -> PartConfig:
    return PartConfig(default, config.options) if config.name == AUTO else config


def _check(kind: Registry[Any], part: Part, providers: list[tuple[Registry[Any], Part]]) -> None:
    """Refuse ``part`` when something it needs is given by none of the parts before it."""
    lacking = part.needed().difference(*(provider.given() for _, provider in providers))
    if not lacking:
        return
    givers = {
        r.kind: [n + _with_options(lacking, c) for n, c in r if lacking <= c.gives | c.may_give] for r, _ in providers
    }
    found = [f"{kind}s that do: {', '.join(names)}" for kind, names in givers.items() if names]
    given_by = " and ".join(f"{r.kind} {r.name_of(provider)!r}" for r, provider in providers)
    raise IncompatiblePartsError(
        f"{kind.kind} {kind.name_of(part)!r} needs {_listed(lacking)}, which {given_by or 'nothing before it'} "
        f"{'do' if len(providers) > 1 else 'does'} not give; {'; '.join(found) or 'nothing registered does'}"
    )


def _with_options(lacking: Capabilities, cls: type[Part]) -> str:
    return "" if lacking <= cls.gives else " (by option)"


def _listed(capabilities: Capabilities) -> str:
    return " and ".join(sorted(capabilities))


def describe(cls: type[Part]) -> str:
    """Return the first line of a part's docstring."""
    return (inspect.getdoc(cls) or "").strip().split("\n")[0]


def option_names(cls: type[Part]) -> list[str]:
    """Return the names of a part's options."""
    return list(_options(cls) or {})
