"""The adapter over a Hugging Face causal LM."""
