"""Runs: resumed exactly, killed or not; features cached or not; validation that replays what decoding does."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from conftest import TINY
from training_factory import tiny_run, write_tiny_chats

from specforge import ConfigError, Pipeline
from specforge.checkpoints import open_checkpoint
from specforge.cli import main
from specforge.target import Target
from specforge.training import Architecture, TrainConfig, load_train_config, start
from specforge.training.architecture import drafter_config
from specforge.training.chats import Chat, load_chats, split
from specforge.training.features import FeatureCache, Features, OnTheFly
from specforge.training.plot import held_out, plot
from specforge.training.replay import parts_of, replay_chat
from specforge.training.rundir import RunFolder
from specforge.training.schedule import chats_of_step, generator, learning_rate
from specforge.training.trainer import Progress, Trainer

KINDS = ("dflash", "domino", "dspark")


class Stopped(Exception):
    """What the tests stop a run with."""


def run(config: TrainConfig, *, resume: bool = False, stop_at: int | None = None) -> Trainer:
    trainer = start.prepare(config, resume=resume)

    def watch(progress: Progress) -> None:
        if progress.step == stop_at:
            raise Stopped

    trainer.run(watch)
    return trainer


def state_of(config: TrainConfig) -> dict[str, Any]:
    return torch.load(Path(config.out) / "state.pt", weights_only=True)


def assert_same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, torch.Tensor):
        assert torch.equal(found, wanted)
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key in wanted:
            assert_same(found[key], wanted[key])
    elif isinstance(wanted, list):
        for ours, theirs in zip(found, wanted, strict=True):
            assert_same(ours, theirs)
    else:
        assert found == wanted


def without_time(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key != "seconds"}


def test_a_stopped_run_resumes_to_the_same_weights(tmp_path: Path) -> None:
    whole, stopped = tiny_run(tmp_path, "whole"), tiny_run(tmp_path, "stopped")
    run(whole)
    with pytest.raises(Stopped):
        run(stopped, stop_at=5)
    assert state_of(stopped)["step"] == 4
    run(stopped, resume=True)
    assert_same(without_time(state_of(stopped)), without_time(state_of(whole)))
    steps = [[without_time(e) for e in RunFolder(Path(c.out)).metrics()] for c in (stopped, whole)]
    assert steps[0] == steps[1]
    assert [entry["step"] for entry in steps[0]] == [1, 2, 3, 4, 5, 6, 6]


def test_a_resumed_run_that_loses_its_optimizer_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, stopped = tiny_run(tmp_path, "whole"), tiny_run(tmp_path, "stopped")
    run(whole)
    with pytest.raises(Stopped):
        run(stopped, stop_at=5)
    monkeypatch.setattr(torch.optim.AdamW, "load_state_dict", lambda self, state: None)
    run(stopped, resume=True)
    with pytest.raises(AssertionError):
        assert_same(state_of(stopped)["model"], state_of(whole)["model"])


CONFIG_FILE = """
from pathlib import Path
import sys
sys.path.insert(0, {tests!r})
from training_factory import tiny_run
config = tiny_run(Path({folder!r}), {name!r}, steps=60, save_every=1, cache={cache!r})
"""


def test_a_killed_run_resumes_to_the_same_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {}
    for name in ("whole", "killed"):
        files[name] = tmp_path / f"{name}.py"
        tests = str(Path(__file__).parent)
        files[name].write_text(
            CONFIG_FILE.format(tests=tests, folder=str(tmp_path), name=name, cache=str(tmp_path / f"{name}-cache"))
        )
    write_tiny_chats(tmp_path / "chats.jsonl")
    limited = "import torch; torch.set_num_threads(1); from specforge.cli import main; main()"
    process = subprocess.Popen([sys.executable, "-c", limited, "train", "--config", str(files["killed"])])
    metrics, deadline = tmp_path / "killed" / "metrics.jsonl", time.monotonic() + 120
    while time.monotonic() < deadline and (not metrics.exists() or metrics.read_text().count("\n") < 5):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    killed, whole = (load_train_config(files[name]) for name in ("killed", "whole"))
    assert 4 <= state_of(killed)["step"] < 60
    with pytest.raises(SystemExit) as ended:
        main(["train", "--config", str(files["killed"]), "--resume"])
    assert ended.value.code == 0
    assert "wrote" in capsys.readouterr().out
    run(whole)
    assert_same(without_time(state_of(killed)), without_time(state_of(whole)))


def test_a_run_is_not_overwritten_nor_resumed_as_another(tmp_path: Path) -> None:
    config = tiny_run(tmp_path, steps=1)
    with pytest.raises(ConfigError, match="no training state"):
        start.prepare(config, resume=True)
    run(config)
    with pytest.raises(ConfigError, match="holds a run"):
        start.prepare(config)
    other = config.with_options(learning_rate=0.5)
    with pytest.raises(ConfigError, match=r"started with optimization.learning_rate 0.001, not 0.5"):
        start.prepare(other, resume=True)
    assert start.prepare(config.with_options(steps=3, max_minutes=5.0), resume=True).step == 1


def test_a_run_ends_when_its_time_is_up(tmp_path: Path) -> None:
    config = tiny_run(tmp_path, steps=10**6, max_minutes=0.01)
    trainer = run(config)
    assert 1 <= trainer.step < 10**6
    assert RunFolder(Path(config.out)).metrics()[-2]["learning_rate"] < 0.2 * config.optimization.learning_rate


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_trains_into_a_checkpoint_that_decodes(kind: str, tmp_path: Path, tiny_target: Target) -> None:
    config = tiny_run(tmp_path, kind=kind, steps=2, confidence=kind == "dspark", precision="bfloat16")
    run(config)
    folder = Path(config.out) / "drafter"
    opened = open_checkpoint(folder)
    assert opened.config == drafter_config(config.architecture, tiny_target)
    weights = opened.tensors("cpu")
    assert_same({**weights}, {name: state_of(config)["model"][name] for name in weights})
    pipeline = Pipeline.from_preset(kind, target=tiny_target, checkpoint=str(folder))
    plain = Pipeline.from_preset("ar", target=tiny_target)
    options = {"max_new_tokens": 20, "stop_token_ids": []}
    assert pipeline.generate([5, 6, 7], **options).token_ids == plain.generate([5, 6, 7], **options).token_ids


def test_a_run_can_start_from_a_checkpoint(tmp_path: Path) -> None:
    first = tiny_run(tmp_path, "first", steps=2)
    run(first)
    initial = str(Path(first.out) / "drafter")
    trainer = start.prepare(tiny_run(tmp_path, "second", initial=initial))
    assert_same(dict(trainer.model.state_dict()), dict(state_of(first)["model"]))
    with pytest.raises(ConfigError, match="initial checkpoint"):
        start.prepare(tiny_run(tmp_path, "third", initial=initial, state=16))


def test_cached_features_are_the_computed_ones(tmp_path: Path, tiny_target: Target) -> None:
    chats = load_chats(write_tiny_chats(tmp_path / "chats.jsonl"), tiny_target, 512)
    source = OnTheFly(tiny_target, chats, (1, 2), 8)
    cache = FeatureCache(tmp_path / "cache", source)
    first = [cache(index) for index in (3, 0)]
    assert cache.filled == 2
    assert cache.missing() == [1, 2, 4, 5, 6, 7]

    def must_not_run(index: int) -> Features:
        raise AssertionError(f"chat {index} is in the cache")

    again = FeatureCache(tmp_path / "cache", source)
    again._source = must_not_run  # type: ignore[assignment]
    for index, kept in zip((3, 0), first, strict=True):
        for name in ("hidden", "top_tokens", "top_log_probs"):
            assert torch.equal(getattr(again(index), name), getattr(kept, name))
            assert torch.equal(getattr(source(index), name), getattr(kept, name))


def test_features_are_the_models_hidden_states_and_distribution(tmp_path: Path, tiny_target: Target) -> None:
    chats = load_chats(write_tiny_chats(tmp_path / "chats.jsonl", count=1), tiny_target, 512)
    found = OnTheFly(tiny_target, chats, (1, 3), 8)(0)
    with torch.no_grad():
        output = tiny_target.model(chats[0].token_ids[None], output_hidden_states=True)
    wanted = torch.cat([output.hidden_states[2], output.hidden_states[4]], dim=-1)[0]
    torch.testing.assert_close(found.hidden.float(), wanted, rtol=1e-2, atol=1e-2)
    log_probs, tokens = torch.log_softmax(output.logits[0, chats[0].answer_start :], dim=-1).topk(8)
    assert torch.equal(found.top_tokens.long(), tokens)
    torch.testing.assert_close(found.top_log_probs.float(), log_probs, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("change", "named"), [({"taps": (1, 3)}, "taps"), ({"top_k": 4}, "top_k"), ({"chats": None}, "chats")]
)
def test_a_cache_of_something_else_is_refused(
    change: dict[str, Any], named: str, tmp_path: Path, tiny_target: Target
) -> None:
    chats = load_chats(write_tiny_chats(tmp_path / "chats.jsonl"), tiny_target, 512)
    source = OnTheFly(tiny_target, chats, (1, 2), 8)
    FeatureCache(tmp_path / "cache", source)
    changed = {"chats": chats[:-1]} if named == "chats" else change
    with pytest.raises(ConfigError, match=f"was made with {named}"):
        FeatureCache(tmp_path / "cache", attrs.evolve(source, **changed))


def test_training_on_the_fly_is_training_from_the_cache(tmp_path: Path) -> None:
    direct, cached = tiny_run(tmp_path, "direct"), tiny_run(tmp_path, "cached", cache=str(tmp_path / "cache"))
    run(direct)
    seen: list[tuple[int, int]] = []
    filled = start.fill_cache(cached, lambda done, of: seen.append((done, of)))
    assert seen == [(done, 8) for done in range(1, 9)]
    assert filled.missing() == []
    run(cached)
    assert_same(state_of(cached)["model"], state_of(direct)["model"])


PRESETS = {"dflash": "dflash", "ddtree": "dflash", "domino": "domino", "dominotree": "domino"}


@pytest.mark.parametrize("preset", PRESETS)
def test_replay_counts_what_decoding_accepts(preset: str, tiny_target: Target, golden: dict[str, Any]) -> None:
    kind = PRESETS[preset]
    parts = parts_of(preset, str(TINY / kind), kind, 16, tiny_target)
    pipeline = Pipeline.from_preset(preset, target=tiny_target, checkpoint=str(TINY / kind))
    pipeline.parts = parts
    source: list[int] = []
    for prompt in golden["prompts"][:3]:
        result = pipeline.generate(prompt, max_new_tokens=40, stop_token_ids=[])
        chat = Chat(torch.tensor([*prompt, *result.token_ids]), len(prompt), True)
        features = OnTheFly(tiny_target, [chat], parts.drafter.taps, 0)(0)
        exact = tiny_target.prefill(chat.token_ids, tiny_target.new_cache(), parts.drafter.taps).features
        assert exact is not None
        lengths = replay_chat(parts, chat, attrs.evolve(features, hidden=exact[0]), 40)
        assert lengths == result.acceptance_lengths
        source += lengths
    assert max(source) > 2


def test_the_backbone_of_a_domino_drafter_is_replayed_without_its_head(tiny_target: Target) -> None:
    parts = parts_of("dflash", str(TINY / "domino"), "domino", 16, tiny_target)
    assert getattr(parts.drafter, "ignore_head", None) is True


def test_every_pass_over_the_data_takes_each_chat_once() -> None:
    taken = [chat for step in range(10) for chat in chats_of_step(3, step, 4, 10)]
    passes = [taken[i : i + 10] for i in range(0, 40, 10)]
    assert all(sorted(one) == list(range(10)) for one in passes)
    assert len({tuple(one) for one in passes}) == 4
    assert taken != [chat for step in range(10) for chat in chats_of_step(4, step, 4, 10)]


def test_generators_differ_by_seed_purpose_and_place() -> None:
    keys = [(0, "a", 0), (1, "a", 0), (0, "b", 0), (0, "a", 1), (0, "a", 0, 0)]
    drawn = {float(torch.rand((), generator=generator(*key))) for key in keys}
    assert len(drawn) == len(keys)
    assert float(torch.rand((), generator=generator(0, "a", 0))) in drawn


def test_the_learning_rate_warms_up_and_falls_to_its_share(tmp_path: Path) -> None:
    options = tiny_run(tmp_path, steps=100, warmup=9, learning_rate=1.0, final_share=0.1).optimization
    rates = [learning_rate(options, step, step / 100) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(0.98, abs=0.02)
    assert rates.index(max(rates)) == 9
    assert rates[-1] == pytest.approx(0.1)
    assert all(a >= b for a, b in pairwise(rates[9:]))


def test_held_out_chats_are_the_last_greedy_ones_and_never_trained_on() -> None:
    chats = [Chat(torch.arange(4), 1, greedy) for greedy in (True, False, True, True, False)]
    assert split(chats, 2) == ([0, 1, 4], [2, 3])
    assert split(chats, 0) == ([0, 1, 2, 3, 4], [])
    assert split(chats, 2, limit=2) == ([0, 1], [2, 3])
    with pytest.raises(ConfigError, match="held_out is 4"):
        split(chats, 4)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"chats.jsonl:2: not JSON"),
        ("[1]", "no chat of this target"),
        (json.dumps({"assistant_ids": [3, 4]}), "no chat of this target"),
        (json.dumps({"prompt_ids": [3], "assistant_ids": [3, 160]}), "no chat of this target"),
        (json.dumps({"prompt_ids": [3], "assistant_ids": [True, 4]}), "no chat of this target"),
    ],
)
def test_lines_that_are_no_chats_are_named(line: str, message: str, tmp_path: Path, tiny_target: Target) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_text(json.dumps({"prompt_ids": [3], "assistant_ids": [4, 5], "greedy": True}) + "\n" + line + "\n")
    with pytest.raises(ConfigError, match=message):
        load_chats(file, tiny_target, 512)


def test_long_chats_are_cut_and_short_answers_dropped(tmp_path: Path, tiny_target: Target) -> None:
    lines = [{"prompt_ids": [3] * n, "assistant_ids": list(range(9)), "greedy": True} for n in (2, 7, 8, 20)]
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [c.answer_length for c in load_chats(file, tiny_target, 9)] == [7, 2]
    with pytest.raises(ConfigError, match="no answer"):
        load_chats(file, tiny_target, 3)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_chats(tmp_path / "none.jsonl", tiny_target, 9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"taps": (1, 4)}, r"taps are \[1, 4\].*0 to 3"),
        ({"taps": (1, 1)}, "different decoder layers"),
        ({"taps": ()}, "at least one"),
        ({"mask_token_id": 160}, "mask_token_id is 160"),
        ({"bottleneck": 0}, "bottleneck is 0"),
        ({"confidence": True}, "a domino drafter has no confidence head"),
    ],
)
def test_architectures_that_do_not_fit_are_refused(changes: dict[str, Any], message: str, tiny_target: Target) -> None:
    options = Architecture(**{"taps": (1, 2), "mask_token_id": 159, **changes})
    with pytest.raises(ConfigError, match=message):
        drafter_config(options, tiny_target)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("kind", "eagle"),
        ("block_size", 1),
        ("steps", 0),
        ("learning_rate", 0.0),
        ("distillation", 1.5),
        ("softmax_tokens", 0),
        ("base_weight_until", 0.0),
        ("max_minutes", -1.0),
        ("precision", "float16"),
        ("log_every", True),
    ],
)
def test_options_out_of_range_are_named(option: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{option} is {value!r}"):
        tiny_run(tmp_path, **{option: value})


def test_a_run_is_plotted(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    config = tiny_run(tmp_path, steps=4, validate_every=2)
    run(config)
    points = held_out(RunFolder(Path(config.out)).metrics())
    assert set(points) == {"dflash", "domino", "dominotree"}
    assert all([step for step, _ in found] == [2, 4] for found in points.values())
    assert plot(config.out).stat().st_size > 1000


def test_a_plot_needs_a_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(ConfigError, match="holds no metrics"):
        plot(tmp_path)


def test_the_command_fills_a_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.py"
    tests, folder = str(Path(__file__).parent), str(tmp_path)
    file.write_text(CONFIG_FILE.format(tests=tests, folder=folder, name="run", cache=str(tmp_path / "cache")))
    with pytest.raises(SystemExit) as ended:
        main(["train", "--config", str(file), "--fill-cache"])
    assert ended.value.code == 0
    assert "holds the features of 8 chats" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--config", "none.py"], "config file 'none.py' does not exist"),
        (["selfchat", "--out", "none.jsonl", "--target", str(TINY / "target")], "has no chat template"),
    ],
)
def test_the_commands_refuse_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_recipes_are_valid_configs() -> None:
    recipes = Path(__file__).parent.parent / "configs" / "training"
    first, second = (load_train_config(recipes / f"smollm2_domino{name}.py") for name in ("", "_further"))
    assert first.architecture == second.architecture
    assert (first.architecture.kind, first.initial, second.initial) == ("domino", None, f"{first.out}/drafter")
    with pytest.raises(ConfigError, match="it must be a TrainConfig"):
        load_train_config(Path(__file__).parent.parent / "configs" / "domino.py")


LAUNCH = """
import sys, torch
torch.set_num_threads(1)
sys.path.insert(0, {tests!r})
from pathlib import Path
from training_factory import tiny_run
from specforge.training.start import prepare
config = tiny_run(Path({folder!r}), "several", softmax_tokens=160, sampled_tokens=0)
prepare(config, distributed=True).run()
"""


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    alone = tiny_run(tmp_path, "alone", softmax_tokens=160, sampled_tokens=0)
    run(alone)
    script = tmp_path / "several.py"
    script.write_text(LAUNCH.format(tests=str(Path(__file__).parent), folder=str(tmp_path)))
    launcher = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1"]
    options = ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    subprocess.run([sys.executable, *launcher, *options, str(script)], check=True, timeout=300)
    several = tiny_run(tmp_path, "several")
    for name, weight in state_of(several)["model"].items():
        torch.testing.assert_close(weight, state_of(alone)["model"][name], rtol=1e-3, atol=1e-5)
