"""Which models are refused, by which name, and that the given model is left as it was."""

from __future__ import annotations

import sys

import pytest
import torch
import transformers
from target_families import FAMILIES, VOCAB, WINDOW, tiny_model
from transformers import AutoConfig, PreTrainedConfig

from specforge.errors import ConfigError, UnsupportedTargetError
from specforge.target import Target, support
from specforge.target import model as target_model
from specforge.target.attention import ATTENTION_NAME
from specforge.tree import DraftTree

_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,
}
TREE = DraftTree([5, 6, 7, 8, 9], [-1, 0, 0, 1, 2])


@pytest.mark.parametrize(
    ("model_type", "named"),
    [
        ("mamba", "mamba|linear_attention"),
        ("mamba2", "mamba2|linear_attention"),
        ("falcon_mamba", "falcon_mamba|linear_attention"),
        ("qwen3_next", "linear_attention"),
        ("qwen3_5_text", "linear_attention"),
        ("qwen3_5", "linear_attention"),
        ("recurrent_gemma", "recurrent|linear_attention"),
        ("rwkv", "rwkv"),
        ("jamba", "mamba|linear_attention"),
        ("llama4_text", "chunked_attention"),
        ("t5", "encoder-decoder"),
        ("bart", "encoder-decoder"),
    ],
)
def test_configs_are_refused_by_layer_type_without_weights(model_type: str, named: str) -> None:
    with pytest.raises(UnsupportedTargetError, match=rf"{model_type} model cannot be a target.*({named})"):
        support.check_config(AutoConfig.for_model(model_type))


@pytest.mark.parametrize("family", FAMILIES)
def test_supported_configs_pass(family: str) -> None:
    support.check_config(tiny_model(family).config)


def test_dynamic_rope_is_refused_and_longrope_ends_at_the_original_context() -> None:
    factors = [1.0] * 6
    dynamic = transformers.LlamaConfig(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    with pytest.raises(UnsupportedTargetError, match="dynamic rope"):
        support.check_config(dynamic)
    long = transformers.Phi3Config(
        **{**_SHAPE, "max_position_embeddings": 4096},
        original_max_position_embeddings=512,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": factors,
            "long_factor": factors,
            "original_max_position_embeddings": 512,
        },
    )
    support.check_config(long)
    assert support.context_limit(long) == 512
    assert support.context_limit(transformers.LlamaConfig(max_position_embeddings=77)) == 77
    assert support.context_limit(PreTrainedConfig()) == sys.maxsize


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("GptOss", {"num_local_experts": 4, "head_dim": 12, "sliding_window": WINDOW}, "GptOssAttention passes s_aux"),
        ("Bloom", {"n_layer": 2, "n_head": 4}, "takes no position_ids"),
        ("Mpt", {"d_model": 48, "n_layers": 2, "n_heads": 4}, "takes no position_ids"),
        ("Falcon", {"alibi": True}, "FalconForCausalLM fails"),
        ("DiffLlama", {}, "DiffLlamaDecoderLayer.* called registered attention 8 times"),
        ("Doge", {}, "DogeAttention makes an attention mask"),
        ("GPTNeo", {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]}, "0 times"),
    ],
)
def test_models_that_go_past_tree_attention_are_refused(name: str, options: dict, reason: str) -> None:
    shape = {key: value for key, value in _SHAPE.items() if key not in {"num_hidden_layers"} or name != "GPTNeo"}
    config = getattr(transformers, f"{name}Config")(**{**shape, **options})
    with pytest.raises(UnsupportedTargetError, match=reason):
        Target.from_model(getattr(transformers, f"{name}ForCausalLM")(config))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Mixtral", {"num_local_experts": 4}),
        ("Granite", {"attention_multiplier": 0.3, "logits_scaling": 2.0}),
        ("Cohere2", {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2}),
        ("Starcoder2", {"sliding_window": WINDOW}),
        ("Phi", {}),
    ],
)
def test_families_nobody_promised_are_right_when_they_are_let_in(name: str, options: dict) -> None:
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(
        getattr(transformers, f"{name}Config")(**{**_SHAPE, **options})
    ).eval()
    target = Target.from_model(model)
    prefix, cache = torch.arange(3, 3 + 3 * WINDOW), target.new_cache()
    target.prefill(prefix, cache)
    logits = target.verify(TREE, cache).logits
    for node in range(len(TREE)):
        with torch.no_grad():
            want = model(torch.tensor([[*prefix.tolist(), *TREE.path_tokens(node)]])).logits[0, -1]
        torch.testing.assert_close(logits[node], want, atol=5e-4, rtol=5e-4)


def test_a_window_that_the_config_does_not_know_is_refused() -> None:
    model = tiny_model("gemma3")
    model.model.layers[0].self_attn.sliding_window = WINDOW + 1
    with pytest.raises(UnsupportedTargetError, match=rf"layer 0 .* window {WINDOW + 1}.* {WINDOW}"):
        Target.from_model(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt-neox"])
def test_the_model_is_left_as_it_was(family: str, dtype: torch.dtype) -> None:
    model, prompt = tiny_model(family, dtype=dtype), torch.arange(3, 12)[None]
    implementation, modules = model.config._attn_implementation, [*model.modules()]
    parameters = {name: (p.data_ptr(), p.clone()) for name, p in model.named_parameters()}
    options = {"attention_mask": torch.ones_like(prompt), "do_sample": False, "max_new_tokens": 12}
    before = model.generate(prompt, **options)
    target = Target.from_model(model)
    cache = target.new_cache()
    target.prefill(prompt[0], cache, (0,))
    target.verify(TREE, cache, (1,))
    assert torch.equal(model.generate(prompt, **options), before)
    assert implementation != ATTENTION_NAME
    assert model.config._attn_implementation == implementation
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    for name, parameter in model.named_parameters():
        assert parameter.data_ptr() == parameters[name][0]
        assert torch.equal(parameter, parameters[name][1])
    assert not any(module._forward_hooks for module in model.modules())


def test_parameters_are_shared_and_not_copied() -> None:
    model = tiny_model("llama", dtype=torch.bfloat16)
    target = Target.from_model(model)
    owned = {p.data_ptr() for p in model.parameters()}
    assert {p.data_ptr() for p in target._runner.parameters()} == owned
    assert target.lm_head.weight is target.embedding.weight is model.model.embed_tokens.weight


def test_an_error_in_a_forward_leaves_model_and_cache_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompt = tiny_model("llama"), torch.arange(3, 12)
    target = Target.from_model(model)
    cache = target.new_cache()
    target.prefill(prompt, cache)
    want = target.verify(TREE, cache).logits.clone()

    def fail(*inputs: object) -> None:
        raise KeyboardInterrupt

    handle = target.layers[2].register_forward_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        target.verify(TREE, cache, (0, 3))
    handle.remove()
    assert not any(module._forward_hooks for module in target._runner.modules())
    assert torch.equal(target.verify(TREE, cache).logits, want)
    assert model.config._attn_implementation == "sdpa"
    assert len(model.generate(prompt[None], max_new_tokens=2, do_sample=False, eos_token_id=None)[0]) == 11


def test_weights_must_lie_on_one_real_device() -> None:
    model = tiny_model("llama")
    model.model.layers[1].to("meta")
    with pytest.raises(ConfigError, match="cpu and meta"):
        Target.from_model(model)
    with pytest.raises(ConfigError, match="meta"):
        Target.from_model(model.to("meta"))


def test_what_a_target_says_of_itself() -> None:
    model = tiny_model("gemma3")
    target = Target.from_model(model, name="tiny")
    assert (target.name, target.tokenizer, target.num_layers) == ("tiny", None, 4)
    assert (target.hidden_size, target.vocab_size, target.context_limit) == (48, VOCAB, 256)
    assert (target.device, target.dtype) == (torch.device("cpu"), torch.float32)
    assert target.embedding is model.get_input_embeddings()
    assert target.config is model.config.get_text_config()
    assert target.new_cache(7).capacity == 7
    assert Target.from_model(model).name == "gemma3_text"


@pytest.mark.parametrize(
    ("in_generation_config", "in_config", "want"),
    [(5, 2, (5,)), ([5, 6], 2, (5, 6)), (None, 2, (2,)), (None, None, ())],
)
def test_stop_tokens_come_from_the_generation_config_first(in_generation_config, in_config, want) -> None:
    model = tiny_model("qwen3")
    model.generation_config.eos_token_id, model.config.eos_token_id = in_generation_config, in_config
    assert target_model._stop_token_ids(model) == want
