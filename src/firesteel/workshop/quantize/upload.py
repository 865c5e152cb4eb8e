"""The result to the Hub: weights, card, licence and catalog entries, through `huggingface_hub`.

An upload that was interrupted goes on: the Hub is asked which files it has, by their digests. A new
repository is private unless the user says otherwise; an existing one is left as it is.
"""

from __future__ import annotations

import os
from pathlib import Path

from firesteel.errors import FiresteelError, ServerNotReady, UsageError
from firesteel.launch import is_valid_hub_id


def require_upload(repository: str) -> None:
    """Before hours of work, not after."""
    from huggingface_hub import get_token

    if not is_valid_hub_id(repository):
        raise UsageError(f"`{repository}` is not a Hub repository", next="--upload ORG/NAME")
    if get_token() is None:
        raise UsageError("an upload needs a token of the Hub", next="HF_TOKEN=... firesteel quantize ...")


def upload_folder(folder: Path, repository: str, *, is_public: bool = False) -> str:
    """Returns the address of the commit."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), library_name="firesteel")
    try:
        api.create_repo(repository, private=not is_public, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository, folder_path=folder, commit_message="Quantized by firesteel"
        )
    except HfHubHTTPError as error:
        raise FiresteelError(
            f"the Hub refused the upload: {error}",
            next=f"firesteel quantize ... --upload {repository}, again",
        ) from error
    except OSError as error:
        raise ServerNotReady(
            f"the Hub cannot be reached: {error}",
            next="the same command again: what is there is not sent twice",
        ) from error
    return str(commit.commit_url)
