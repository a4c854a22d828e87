"""Prompt lookup: copy what followed the last match of the latest tokens. No weights; for text that repeats itself."""

from specforge import PipelineConfig

config = PipelineConfig(target="smollm2", drafter="ngram", scorer="trie", builder="chain")
