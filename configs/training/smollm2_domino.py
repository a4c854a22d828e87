"""A Domino drafter for the bundled SmolLM2-135M-Instruct: 15.2 million parameters, trained on two CPU cores."""

from specforge.training import Architecture, Data, Objective, Optimization, Reporting, TrainConfig

config = TrainConfig(
    out="runs/smollm2-domino",
    target="smollm2",
    architecture=Architecture(kind="domino", taps=(2, 10, 18, 28), mask_token_id=3),
    data=Data(chats="selfchat/smollm2-135m-instruct.jsonl", cache="runs/smollm2-features"),
    objective=Objective(softmax_tokens=8192, sampled_tokens=2048),
    optimization=Optimization(steps=4000, batch_size=8, anchors=32, learning_rate=1e-3, warmup=100),
    reporting=Reporting(log_every=20, save_every=100, validate_every=500),
)
