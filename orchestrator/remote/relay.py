"""What stands in for the journal on an outpost: all that would be written here is told to the coordinator."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from orchestrator.events import BatchCommitted, Event, RunEnded, WorkerReleased
from orchestrator.journal import encode_event, encode_record
from orchestrator.provenance import HostUse
from orchestrator.record.output import Record
from orchestrator.remote.link import Link
from orchestrator.remote.logs import shortened
from orchestrator.remote.messages import Logged, Told, Wrote
from protocol.records import BatchStats


class Relay:
    """`logs`: where the workers' logs are on this machine."""

    def __init__(self, link: Link, logs: Path) -> None:
        self._link, self._logs = link, logs

    def emit(self, event: Event) -> None:
        if isinstance(event, RunEnded):  # the run's end is the coordinator's to tell
            return
        if isinstance(event, WorkerReleased):
            name = f"{event.incarnation}.log"
            self._link.tell(Logged(number=0, name=name, text=shortened(self._logs / name)))
        self._link.tell(Told(number=0, event=encode_event(event)))

    def commit(
        self,
        *,
        point: str,
        batch: str,
        incarnation: str,
        records: Sequence[Record],
        stats: BatchStats | None,
        flags: Sequence[str] = (),
        host: HostUse | None = None,
        neighbours: Sequence[str] = (),
    ) -> BatchCommitted:
        """As the loop here wants to hear it; where the records will lie is not known here."""
        assert not neighbours, "an outpost has one worker at a time"
        self._link.tell(
            Wrote(
                number=0,
                point=point,
                batch=batch,
                incarnation=incarnation,
                records=[encode_record(record) for record in records],
                stats=stats,
                flags=list(flags),
                host=host,
            )
        )
        return BatchCommitted(
            at=time.time(),
            point=point,
            batch=batch,
            incarnation=incarnation,
            prompts=[record.prompt_id for record in records],
            offset=0,
            length=0,
            crc=0,
            stats=stats,
            errors=sum(record.error is not None for record in records),
            flags=list(flags),
            host=host,
        )
