"""What one incarnation sets out with: a folder of its own, what it is lent, its environment and its command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.envs import EngineEnv
from orchestrator.errors import LaunchFailed
from orchestrator.launcher import LaunchSpec, base_environment, beside
from orchestrator.plan import WorkerStart
from orchestrator.run.lending import Lending, Loan, about, compiles
from orchestrator.run.priority import background_nice
from orchestrator.run.slots import Slot
from orchestrator.run.workplace import CACHE, Workplace, worker_environment
from orchestrator.stores.tools import BOOTSTRAP
from protocol.keys import Keys

#: How nice a worker is that stands by, and whose weights it reads into the page cache meanwhile.
NICE, READ_AHEAD = "AIRLOCK_NICE", "AIRLOCK_READ_AHEAD"


@dataclass(frozen=True)
class Outfitter:
    workplace: Workplace
    lending: Lending
    endpoint: str

    def spec(
        self,
        name: str,
        start: WorkerStart,
        env: EngineEnv,
        slot: Slot,
        *,
        in_background: bool,
        token: str,
        keys: Keys,
        log: Path,
    ) -> tuple[LaunchSpec, Loan]:
        """Raises LaunchFailed where no folder can be made. `in_background`: others are measured while it imports."""
        try:
            room = self.workplace.room(name)
        except OSError as exc:
            raise LaunchFailed(f"{exc.filename}: {exc.strerror}") from exc
        base = {**base_environment(), **env.variables}
        if not start.config.method.worker:  # which was looked for on the caller's own
            base = beside(env.python, base)
        environment = worker_environment(
            base,
            method=start.config.method,
            slot=slot,
            endpoint=self.endpoint,
            token=token,
            keys=keys,
            room=room,
        )
        if in_background:
            environment |= {NICE: str(background_nice()), READ_AHEAD: start.config.model_path}
        inherited = {variable: value for variable, value in base.items() if environment.get(variable) == value}
        loan = self._borrow(name, start, env, slot, inherited, room)
        spec = LaunchSpec(
            argv=start.config.method.worker or (env.python, str(BOOTSTRAP), "worker"),
            env=environment,
            cwd=str(room),
            log=str(log),
            run_tag=self.workplace.run_tag,
            incarnation=name,
            cpus=slot.cpus,
        )
        return spec, loan

    def _borrow(
        self, name: str, start: WorkerStart, env: EngineEnv, slot: Slot, inherited: Mapping[str, str], room: Path
    ) -> Loan:
        if not compiles(start.config):
            return Loan()
        return self.lending.lend(about(start.config, env, slot, inherited), name, room / CACHE)
