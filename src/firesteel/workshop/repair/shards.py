"""Split or merge the files of a checkpoint: none larger than a size, tensors whole and in order."""

from __future__ import annotations

from firesteel.units import show_bytes
from firesteel.values import replace
from firesteel.workshop.repair.draft import Draft, DraftFile, DraftTensor, in_file_order


def split(draft: Draft, shard_bytes: int) -> Draft:
    shards: list[list[DraftTensor]] = [[]]
    size = 0
    for tensor in draft.tensors():
        if shards[-1] and size + tensor.size > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.size
    count = len(shards)
    names = [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    if count == 1:
        names = ["model.safetensors"]
    files = tuple(DraftFile(name, in_file_order(held)) for name, held in zip(names, shards, strict=True))
    largest = max(sum(tensor.size for tensor in held) for held in shards)
    did = f"{len(draft.files)} files became {count}, of at most {show_bytes(largest)}"
    return replace(draft, files=files, has_index=count > 1, done=(*draft.done, did))
