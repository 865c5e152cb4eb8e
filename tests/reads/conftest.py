from __future__ import annotations

import pytest

from firesteel.catalog.image import Images, read_images
from firesteel.values import YamlFile

TEXT = """
tags:
  - repository: vllm/vllm-openai
    tag: 'v(?P<version>[0-9.]+)'
    engine: vllm
    entrypoint: [vllm, serve]
    sources: [{url: https://example.org, seen: 2026-11-15}]
  - repository: vllm/vllm-openai
    tag: nightly
    engine: vllm
    entrypoint: [vllm, serve]
    floating: true
    sources: [{url: https://example.org, seen: 2026-11-15}]
  - repository: nvcr.io/nvidia/vllm
    tag: '(?P<key>[0-9.]+)-py3'
    versions_by_key: {"26.04": 0.19.0}
    engine: vllm
    sources: [{url: https://example.org, seen: 2026-11-15}]
  - repository: lmsysorg/sglang
    tag: 'v(?P<version>[0-9.]+)'
    engine: sglang
    sources: [{url: https://example.org, seen: 2026-11-15}]
  - repository: ghcr.io/ggml-org/llama.cpp
    tag: 'server-cuda13-b(?P<version>[0-9]+)'
    engine: llamacpp
    entrypoint: [/app/llama-server]
    sources: [{url: https://example.org, seen: 2026-11-15}]
"""


@pytest.fixture(scope="session")
def images() -> Images:
    return read_images(YamlFile.parse("images.yaml", TEXT), Images())
