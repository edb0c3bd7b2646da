"""Tool: bring a model from the hub into the local cache, as HF_HOME, HF_TOKEN and HF_HUB_OFFLINE say."""

from __future__ import annotations

import os
from typing import Any

#: Other formats of the same weights, which no engine here reads.
IGNORED = [
    "original/*",
    "onnx/*",
    "openvino/*",
    "coreml/*",
    "*.gguf",
    "*.onnx",
    "*.h5",
    "*.msgpack",
    "*.tflite",
    "*.ot",
]
#: Of the same weights as safetensors, and what lists them. vLLM would take consolidated ones first, no other engine.
INSTEAD = ["*.bin", "*.bin.index.json", "*.pt", "*.pth", "consolidated*"]


def run(request: dict[str, Any]) -> dict[str, Any]:
    """{"repo": "org/name", "revision": str | None} → {"path", "revision": commit} or {"problem": sentence}."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    repo, revision = request["repo"], request["revision"]
    named = f"revision {revision!r}" if revision else "its main revision"
    try:
        path = snapshot_download(repo, revision=revision, ignore_patterns=_ignored(repo, revision))
    except GatedRepoError:
        return {"problem": "is gated: accept its terms on the hub, then set HF_TOKEN"}
    except RevisionNotFoundError:
        return {"problem": f"has no {named}"}
    except RepositoryNotFoundError:
        return {"problem": "is not on the hub, or is private: check the name, or set HF_TOKEN"}
    except LocalEntryNotFoundError as exc:
        offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
        why = "HF_HUB_OFFLINE is set" if offline else f"the hub can't be reached: {_first_line(exc.__cause__ or exc)}"
        return {"problem": f"{named} is not in the local cache, and {why}"}
    except (HfHubHTTPError, OSError, ValueError) as exc:
        return {"problem": f"can't be fetched: {_first_line(exc)}"}
    return {"path": path, "revision": os.path.basename(path)}


def _ignored(repo: str, revision: str | None) -> list[str]:
    """PyTorch's pickled weights, and those in the maker's own format, are left out only where safetensors are there."""
    from huggingface_hub import HfApi

    try:
        files = HfApi().list_repo_files(repo, revision=revision)
    except Exception:  # offline or refused: snapshot_download says which, in its own words
        return IGNORED
    return [*IGNORED, *INSTEAD] if any(map(_is_weights, files)) else IGNORED


def _is_weights(file: str) -> bool:
    return file.endswith(".safetensors") and "/" not in file and not file.startswith("consolidated")


def _first_line(exc: BaseException) -> str:
    lines = str(exc).strip().splitlines()
    return f"{type(exc).__name__}: {lines[0] if lines else ''}"
