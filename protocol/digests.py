"""The digest of a prompt: by it a worker shows what its engine was given."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

DIGEST_CHARACTERS = 16


def prompt_digest(seen: bytes, images: Sequence[bytes] = ()) -> str:
    """Of the packed ids that a model sees and of the image files that go with them, in order.

    Without images, of the ids alone. No ids can pass for ids with images: packed ids are whole
    words of four bytes, and what is hashed for images is not.
    """
    if not images:
        return hashlib.sha256(seen).hexdigest()[:DIGEST_CHARACTERS]
    parts = [hashlib.sha256(part).digest() for part in (seen, *images)]
    return hashlib.sha256(b"\0" + b"".join(parts)).hexdigest()[:DIGEST_CHARACTERS]
