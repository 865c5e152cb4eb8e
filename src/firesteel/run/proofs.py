"""What was proved on this host: which launch, and one of its answers.

A model that is swapped in again with the same command, engine, weights and driver is the one that was proved,
if it still gives that answer word for word (`verify/brief.py`). `proofs/NAME.json` under FIRESTEEL_HOME has
the last proof of each name. It is forgotten when the model crashes, does not come up, or fails `verify`.

Imports little: the gateway forgets proofs too.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from firesteel.edge.home import Home, read_state, write_state
from firesteel.values import Value


class Proof(Value):
    digest: str
    """Of everything that its answers depend on (`verify.brief.proof_digest`)."""
    answer: str


def read_proof(home: Home, name: str) -> Proof | None:
    return read_state(_path(home, name), Proof)


def record_proof(home: Home, name: str, proof: Proof) -> None:
    write_state(_path(home, name), proof)


def forget_proof(home: Home, name: str) -> None:
    with suppress(OSError):  # a proof that cannot be removed cannot be written either
        _path(home, name).unlink(missing_ok=True)


def _path(home: Home, name: str) -> Path:
    return home.root / "proofs" / f"{name}.json"
