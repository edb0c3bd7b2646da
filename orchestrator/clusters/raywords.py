"""Ray's words: what an errand needs in them, and what its driver's reports say in ours. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orchestrator.clusters.base import Errand, JobState, Sighting

NAMED = ("GPU", "CPU", "memory")  # as `resources` has them

Resources = Mapping[str, float]


def series(version: str) -> str:
    return ".".join(version.split(".")[:2])


def refusals(options: Iterable[str]) -> list[str]:
    """Why they can't be given, a sentence each."""
    return [said for option in options if (said := refusal(option))]


def refusal(option: str) -> str:
    name, _, amount = option.rpartition("=")
    if not name or not positive(amount):
        return f"{option}: a Ray resource is written name=1"
    return f"{option}: {name} is not asked for by an option" if name in NAMED else ""


def positive(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False


def resources(errand: Errand) -> dict[str, float]:
    """In Ray's words, of options that were not refused."""
    given = zip(NAMED, (errand.gpus, errand.cpus, (errand.memory_mib or 0) << 20), strict=True)
    own = (option.rpartition("=") for option in errand.options)
    return {name: float(amount) for name, amount in given if amount} | {name: float(amount) for name, _, amount in own}


def lacking(needs: Resources, nodes: Sequence[Resources]) -> list[str]:
    """What no node has enough of; or that none has all of it together. [] if one has."""
    if any(all(node.get(name, 0) >= amount for name, amount in needs.items()) for node in nodes):
        return []
    most = {name: max((node.get(name, 0) for node in nodes), default=0) for name in needs}
    short = [name for name in needs if most[name] < needs[name]]
    lines = [f"no node has {name} {needs[name]:g} (the most: {most[name]:g})" for name in short]
    return lines or [f"no node has all of {words(needs)}"]


def read(report: Mapping[str, Any]) -> Sighting:
    """`told` in a report is what the warden said, from its start to its end."""
    seen = dict(report.get("seen") or {})
    host = seen.pop("host", "")
    if "told" in report:
        state, reason, more = ending(report["told"])
        return Sighting(state, host, reason=reason, seen=seen | more)
    if report["state"] == "pending":
        reason = f"needs {words(report['needs'])}; free in the cluster: {words(report['free'])}"
        return Sighting("pending", host, reason=reason, seen=seen)
    return Sighting(report["state"], host, reason=report.get("error", ""), seen=seen)


def ending(told: Mapping[str, Any]) -> tuple[JobState, str, dict[str, str]]:
    if "error" in told:
        return "ended", f"could not be started: {told['error']}", {}
    if "killed" not in told:
        return "unknown", "its warden was killed; what it guarded may go on", {}
    strays = {"strays": ", ".join(told["strays"])} if told["strays"] else {}
    if told["signal"]:
        return "ended", f"killed by {told['signal']}", {"signal": told["signal"], **strays}
    return "ended", f"exit code {told['code']}", {"code": str(told["code"]), **strays}


def words(amounts: Resources) -> str:
    shown = sorted((name, amount) for name, amount in amounts.items() if not name.startswith(("node:", "object_")))
    return ", ".join(f"{name} {amount:g}" for name, amount in shown) or "nothing"
