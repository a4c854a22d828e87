"""A pipeline: a target and four parts, assembled from a config and ready to decode."""

from __future__ import annotations

from typing import Any

from specforge.assembly import Parts, assemble, with_checkpoint
from specforge.config import PipelineConfig
from specforge.decoding import TokenStream
from specforge.errors import ConfigError
from specforge.presets import preset_config
from specforge.request import GenerateOptions, Prompt, make_request
from specforge.result import GenerationResult
from specforge.target import Target, load_target


class Pipeline:
    """A target with the four parts, ready to decode.

    Pipelines may share a target: each generation has its own cache and drafter session.
    """

    def __init__(self, target: Target, parts: Parts, config: PipelineConfig) -> None:
        self.target = target
        self.parts = parts
        self.config = config

    @classmethod
    def from_config(cls, config: PipelineConfig, *, target: Target | None = None) -> Pipeline:
        """Assemble a pipeline.

        Args:
            config: the parts and the target.
            target: a loaded target to use in place of ``config.target``.

        Raises:
            ConfigError: for names, options or values that cannot be used.
            IncompatiblePartsError: for parts that cannot work together or with the target.
            CheckpointError: for a drafter checkpoint that cannot be read.
            UnsupportedTargetError: for a target that cannot be verified in trees.
        """
        if not isinstance(config, PipelineConfig):
            raise ConfigError(f"the config is a {type(config).__name__}; it must be a PipelineConfig")
        parts = assemble(config)
        if target is None:
            target = load_target(config.target, dtype=config.dtype, device=config.device)
        target.check_taps(parts.drafter.taps)
        parts.drafter.bind(target)
        parts.builder.bind(target, parts.drafter)
        return cls(target, parts, config)

    @classmethod
    def from_preset(
        cls,
        name: str,
        *,
        target: str | Target | None = None,
        checkpoint: str | None = None,
        dtype: str | None = None,
        device: str | None = None,
    ) -> Pipeline:
        """Assemble a named pipeline; errors as in ``from_config``."""
        loaded = target if isinstance(target, Target) else None
        config = preset_config(name).override(None if isinstance(target, Target) else target, dtype, device)
        if checkpoint is not None:
            config = with_checkpoint(config, checkpoint)
        return cls.from_config(config, target=loaded)

    def generate(self, prompt: Prompt, **options: Any) -> GenerationResult:
        """Decode to the end.

        Args:
            prompt: token ids, taken as they are; a string or a list of chat messages goes through the chat template.
            **options: see ``GenerateOptions``.

        Raises:
            ConfigError: for a prompt or option that cannot be used; nothing has run then.
        """
        stream = self.stream(prompt, **options)
        for _ in stream:
            pass
        return stream.result

    def stream(self, prompt: Prompt, **options: Any) -> TokenStream:
        """Decode piece by piece; arguments and errors as in ``generate``."""
        try:
            checked = GenerateOptions(**options)
        except TypeError as error:
            raise ConfigError(f"generate: {error}".replace("GenerateOptions.__init__() ", "")) from error
        request = make_request(self.target, prompt, checked)
        return TokenStream(self.target, self.parts, self.parts.verifier_for(request.sampling), request)
