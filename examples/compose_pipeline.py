"""Compose a pipeline of four parts, decode with it, and see that the text is plain decoding's.

Runs in seconds on a CPU: the target is a tiny one without a tokenizer, so prompts are token ids.
"""

from pathlib import Path

import torch

from specforge import Pipeline, PipelineConfig

TINY = Path(__file__).parents[1] / "tests" / "data" / "qwen3-tiny-a"
PROMPT = [81, 102, 42, 140, 123, 119, 3, 150, 8, 11, 86, 109]


def main() -> None:
    """Run the example."""
    config = PipelineConfig(
        target=TINY / "target",
        drafter={"name": "domino", "checkpoint": str(TINY / "domino")},
        scorer={"name": "conditional", "candidates": 64, "normalizer": "candidates"},
        builder={"name": "heap", "budget": 16},
        verifier="auto",
    )
    pipeline = Pipeline.from_config(config)
    plain = Pipeline.from_preset("ar", target=pipeline.target)

    for options in ({"temperature": 0.0}, {"temperature": 0.8, "top_p": 0.9, "seed": 1}):
        result = pipeline.generate(PROMPT, max_new_tokens=48, trace=True, **options)
        expected = plain.generate(PROMPT, max_new_tokens=48, **options)
        print(f"{options}: {len(result.token_ids)} tokens, {result.mean_acceptance_length:.2f} a round")
        print(f"  the text of plain decoding: {result.token_ids == expected.token_ids}")

    first = result.rounds[0]
    print("the tree of the first round, with the accepted nodes marked:")
    print(first.tree.render(accepted=first.path))

    # The same pipeline behind transformers' own generate.
    model, prompt = pipeline.target.model, torch.tensor([PROMPT])
    output = model.generate(prompt, custom_generate=pipeline, max_new_tokens=48, do_sample=False)
    same = torch.equal(output, model.generate(prompt, max_new_tokens=48, do_sample=False))
    print(f"model.generate gives the same with and without the pipeline: {same}")


if __name__ == "__main__":
    main()
