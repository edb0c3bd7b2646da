"""Whether those who are to be told can be told, as far as that shows beforehand."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.definition import notifyuse, webaddress
from orchestrator.definition.notifyuse import NotifyUse
from orchestrator.definition.places import Places
from orchestrator.errors import Problem


def problems(use: NotifyUse, places: Places, environ: Mapping[str, str]) -> list[Problem]:
    """Variables that are named and not set, or whose values can't stand there."""
    found = []
    for n, webhook in enumerate(use.webhooks):
        key = f"notify.webhook[{n}]" if f"notify.webhook[{n}]" in places.at else "notify.webhook"
        for part, name in webhook.variables:
            value = environ.get(name)
            if not value:
                message = f"{name} is not set in the environment"
                found.append(places.problem(f"{key}.{part}", message, f"export {name}=…"))
            elif why := webaddress.unfit_value(part, value):
                found.append(places.problem(f"{key}.{part}", f"{name} in the environment {why}", ""))
    return found


def lines(use: NotifyUse, folder: Path) -> Iterator[str]:
    """What `plan` says; never a secret."""
    yield from notifyuse.lines(use)
    yield from remarks(use, folder)


def remarks(use: NotifyUse, folder: Path) -> Iterator[str]:
    """Programs that can't be found now: they may be later, so nothing ends for it."""
    for command in use.commands:
        name = command[0]
        path = str(folder / name) if "/" in name else name
        if "{" not in name and shutil.which(path) is None:
            yield f"notify: {name} can't be found or is not executable; while that is so, it is told of nothing"
