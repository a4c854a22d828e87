"""A pipeline: a target and four parts, assembled from a config and ready to decode."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList

from specforge import dropin
from specforge.assembly import Parts, assemble, with_bundled_drafter, with_checkpoint
from specforge.config import PipelineConfig
from specforge.decoding import TokenStream
from specforge.errors import ConfigError
from specforge.interfaces import Drafter
from specforge.presets import preset_config, suited
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
    def from_config(
        cls,
        config: PipelineConfig,
        *,
        target: Target | PreTrainedModel | None = None,
        drafter: Drafter | None = None,
    ) -> Pipeline:
        """Assemble a pipeline.

        On the bundled target a drafter without a checkpoint is the bundled drafter.

        Args:
            config: the parts and the target.
            target: a loaded target or model to use in place of ``config.target``. Pipelines made with one ``Target``
                share it; ``Target.from_model(model, tokenizer)`` makes one that also knows text.
            drafter: another pipeline's drafter to share, made from the same ``config.drafter`` for the same target.

        Raises:
            ConfigError: for names, options or values that cannot be used.
            IncompatiblePartsError: for parts that cannot work together or with the target.
            CheckpointError: for a drafter checkpoint that cannot be read.
            UnsupportedTargetError: for a target that cannot be verified in trees.
        """
        if not isinstance(config, PipelineConfig):
            raise ConfigError(f"the config is a {type(config).__name__}; it must be a PipelineConfig")
        if isinstance(target, PreTrainedModel):
            target = Target.from_model(target)
        config = with_bundled_drafter(config, config.target if target is None else target.name)
        parts = assemble(config, drafter)
        if target is None:
            target = load_target(config.target, dtype=config.dtype, device=config.device)
        if drafter is None:
            target.check_taps(parts.drafter.taps)
            parts.drafter.bind(target)
        parts.builder.bind(target, parts.drafter)
        return cls(target, parts, config)

    @classmethod
    def from_preset(
        cls,
        name: str,
        *,
        target: str | Target | PreTrainedModel | None = None,
        checkpoint: str | None = None,
        dtype: str | None = None,
        device: str | None = None,
    ) -> Pipeline:
        """Assemble a named pipeline; errors as in ``from_config``."""
        if isinstance(target, PreTrainedModel):
            target = Target.from_model(target)
        loaded = target if isinstance(target, Target) else None
        named = target.name if isinstance(target, Target) else target
        device = device if loaded is None else str(loaded.device)
        config = suited(preset_config(name).override(named, dtype, device))
        if checkpoint is not None:
            config = with_checkpoint(config, checkpoint, name=name)
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

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        streamer: Any = None,
        seed: int | None = None,
        **model_kwargs: Any,
    ) -> Tensor | dropin.DropInOutput:
        """Decode for ``model.generate(**inputs, custom_generate=pipeline)``, which calls this; see ``dropin.generate``.

        ``seed`` may be given to ``model.generate`` too; without it one is drawn from torch's generator.
        """
        return dropin.generate(
            self,
            model,
            input_ids,
            logits_processor,
            stopping_criteria,
            generation_config,
            seed,
            streamer,
            model_kwargs,
        )
