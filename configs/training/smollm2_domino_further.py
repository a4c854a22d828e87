"""The second half of the bundled drafter's training: on from the first recipe's weights, with all chats."""

from pathlib import Path

from specforge.training import load_train_config

config = load_train_config(Path(__file__).with_name("smollm2_domino.py")).with_options(
    out="runs/smollm2-domino-further",
    initial="runs/smollm2-domino/drafter",
    limit=100_000,
    base_weight_until=0.01,
    learning_rate=1.2e-3,
    max_minutes=95,
    seed=1,
)
