"""Plain decoding, one token a forward pass: the baseline that everything is compared with."""

from specforge import PipelineConfig

config = PipelineConfig(target="smollm2", drafter="none", scorer="none", builder="none")
