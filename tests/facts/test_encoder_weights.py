"""Counts of transformers 5.19.0's classes, built on the meta device with torch 2.13.0, 2026-11-16."""

from __future__ import annotations

import pytest

from firesteel.facts.model.architecture import FullAttention, Speech
from firesteel.facts.model.config import architecture_of_config
from firesteel.facts.model.parameters import parameters_of_config
from firesteel.facts.model.tensors import Role

from .test_config import load_config


@pytest.mark.parametrize(
    ("name", "total", "encoder"),
    [
        ("whisper-large-v3", 1_543_490_560, 636_968_960),
        ("voxtral", 4_676_271_104, 662_134_784),
        ("qwen3-asr", 2_039_626_880, 319_051_904),
    ],
)
def test_parameters_are_those_of_the_class(name: str, total: int, encoder: int) -> None:
    found = parameters_of_config(load_config(f"speech/{name}"))
    assert found.unknown == ()
    assert found.by_role[Role.TOWER] == encoder
    assert found.total + encoder == total


def test_whisper_turbo_has_a_decoder_of_four_layers() -> None:
    turbo = load_config("speech/whisper-large-v3") | {"decoder_layers": 4}
    found = parameters_of_config(turbo)
    assert found.total + found.by_role[Role.TOWER] == 808_878_080


def test_whisper_caches_its_text_and_the_sound() -> None:
    found = architecture_of_config(load_config("speech/whisper-large-v3"))
    assert found.layers == (FullAttention(20, 64, 64),) * 32
    assert found.max_context == 448
    assert found.speech == Speech(1500, prompt_tokens=4, cached_tokens=1500)


@pytest.mark.parametrize("name", ["voxtral", "qwen3-asr"])
def test_others_have_the_sound_in_their_prompt(name: str) -> None:
    assert architecture_of_config(load_config(f"speech/{name}")).speech == Speech(1500, prompt_tokens=375)


def test_a_tower_without_its_figures_is_unknown_and_the_rest_is_counted() -> None:
    config = load_config("speech/voxtral") | {"audio_config": {"model_type": "voxtral_encoder"}}
    found = parameters_of_config(config)
    assert found.unknown == ("the size of the tower in `audio_config`",)
    assert found.total == 4_676_271_104 - 662_134_784


@pytest.mark.parametrize("kind", ["granite_speech", "glmasr", "fun_asr_nano"])
def test_an_encoder_of_unknown_size_is_told(kind: str) -> None:
    config = {
        "model_type": kind,
        "audio_config": {},
        "encoder_config": {},
        "text_config": load_config("Qwen--Qwen3-8B"),
    }
    assert architecture_of_config(config).speech
    assert any("tower" in what for what in parameters_of_config(config).unknown)


def test_a_language_model_is_not_made_for_sound() -> None:
    assert architecture_of_config(load_config("Qwen--Qwen3-8B")).speech is None
