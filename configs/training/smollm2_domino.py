"""A Domino drafter for the bundled SmolLM2-135M-Instruct: 15.4 million parameters, trained on one CPU core.

This is how the drafter that ships with the package was trained; its card says on what and how long.
"""

from specforge.training import Architecture, Data, Objective, Optimization, Reporting, TrainConfig

config = TrainConfig(
    out="runs/smollm2-domino",
    target="smollm2",
    architecture=Architecture(
        kind="domino", taps=(2, 10, 18, 28), mask_token_id=3, block_size=6, copied_layers=(28, 29)
    ),
    data=Data(chats="selfchat/smollm2-135m-instruct.jsonl", cache="runs/smollm2-features", limit=3400),
    objective=Objective(
        softmax_tokens=4096,
        sampled_tokens=1024,
        base_weight=0.3,
        base_weight_until=0.4,
        distillation=0.7,
        position_decay=3.0,
    ),
    optimization=Optimization(steps=100_000, max_minutes=83, batch_size=4, anchors=40, learning_rate=1.5e-3, warmup=50),
    reporting=Reporting(log_every=25, save_every=250, validate_every=1500, validation_tokens=48),
)
