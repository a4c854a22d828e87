"""Let the size of the tree follow from measured costs and from how often drafts are really accepted.

Runs in seconds on a CPU: the target is a tiny one without a tokenizer, so prompts are token ids.
"""

import json
import tempfile
from itertools import chain
from pathlib import Path
from statistics import mean

import numpy as np

from specforge import GenerationResult, Pipeline, PipelineConfig
from specforge.profiling import Plan, profile_to_file

TINY = Path(__file__).parents[1] / "tests" / "data" / "qwen3-tiny-a"
DRAFTER = {"name": "domino", "checkpoint": str(TINY / "domino")}


def describe(name: str, results: list[GenerationResult]) -> None:
    """Print which budgets were chosen, and what the trees promised and gave."""
    rounds = list(chain.from_iterable(result.rounds for result in results))
    budgets = [record.tree.budget for record in rounds]
    promised = mean(float(np.exp(record.tree.log_probs[1:]).sum()) for record in rounds)
    accepted = mean(len(record.path) - 1 for record in rounds)
    print(
        f"{name:<22} {mean(budgets):5.1f} nodes a round (from {min(budgets)} to {max(budgets)}), "
        f"{promised:.2f} drafts promised, {accepted:.2f} accepted"
    )


def main() -> None:
    """Run the example."""
    prompts = json.loads((TINY / "golden.json").read_text())["prompts"]
    options = {"max_new_tokens": 48, "stop_token_ids": [], "trace": True}
    with tempfile.TemporaryDirectory() as folder:
        costs, calibration = Path(folder) / "costs.json", Path(folder) / "calibration.json"

        # What drafting and verifying cost here: a rough measurement, enough for an example.
        plain = Pipeline.from_config(PipelineConfig(target=TINY / "target", drafter=DRAFTER, builder="chain"))
        target = plain.target
        profile_to_file(target, plain.parts.drafter, costs, Plan(contexts=(32,), nodes=(0, 8, 32, 64), repeats=3))

        def adaptive(**calibrated: str) -> Pipeline:
            builder = {"name": "heap", "budget": 64, "cost_model": str(costs), **calibrated}
            config = PipelineConfig(drafter=DRAFTER, scorer={"name": "conditional"}, builder=builder)
            return Pipeline.from_config(config, target=target)

        raw, learning = adaptive(), adaptive(calibration="online")
        describe("as the drafter says", [raw.generate(prompt, **options) for prompt in prompts[3:]])
        for prompt in prompts[:3]:
            learning.generate(prompt, **options)
        learning.parts.builder.policy.calibration.save(calibration)

        # A saved calibration is used as it is, so that runs can be repeated.
        calibrated = adaptive(calibration=str(calibration))
        describe("after three prompts", [calibrated.generate(prompt, **options) for prompt in prompts[3:]])


if __name__ == "__main__":
    main()
