"""Slurm through sbatch, squeue, scontrol and scancel: 22.05 and later, with no accounting database.

A job is requeued, under its own id, when it is preempted or its node is lost. SLURM_RESTART_COUNT then tells its
runs apart, and two of them may live at once: the processes of a node whose slurmd died go on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO

from orchestrator.clusters import slurmwords
from orchestrator.clusters.base import Errand, Sighting, Unheard
from orchestrator.errors import ClusterError

COMMANDS = ("sbatch", "squeue", "scontrol", "scancel")
#: A controller that is well answers within milliseconds, a busy one of a large cluster within some seconds.
CALL_S = 20.0


@dataclass(frozen=True)
class Answer:
    code: int
    said: str
    complaint: str

    @property
    def words(self) -> str:
        """All of it, as one line."""
        return "; ".join(line.strip() for line in (self.complaint + "\n" + self.said).splitlines() if line.strip())


@dataclass
class Slurm:
    """`notes`: what Slurm remarked on jobs that it took, and what of our environment they don't get, each once."""

    call_s: float = CALL_S
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return "slurm"

    def check(self) -> list[str]:
        missing = [command for command in COMMANDS if shutil.which(command) is None]
        if missing:
            return [f"Slurm's commands are not in PATH: {', '.join(missing)}"]
        try:
            answer = self._call("scontrol", "ping")
        except ClusterError as error:
            return [str(error)]
        return [] if " is UP" in answer.said else [f"Slurm's controller can't be reached: {answer.words}"]

    def objections(self, errand: Errand) -> list[str]:
        """Why Slurm would not take this errand: no such partition or account, no GPUs, no node that is large enough.
        Nothing is submitted."""
        if refused := slurmwords.refusals(errand.options, errand.gpus):
            return refused
        answer = self._sbatch(errand, "--test-only")
        return [answer.words] if answer.code else []

    def submit(self, errand: Errand) -> str:
        """If sbatch gave no answer in time the job may have been taken all the same, and nobody knows its id: what it
        reads first must be taken away, so that it ends by itself."""
        if refused := slurmwords.refusals(errand.options, errand.gpus):
            raise ClusterError("; ".join(refused))
        answer = self._sbatch(errand)
        job = slurmwords.job_id(answer.said) if answer.code == 0 else None
        if job is None:
            raise _refusal(f"sbatch did not take {errand.name}: {answer.words or f'exit {answer.code}'}")
        left_out = ", ".join(slurmwords.unheeded(os.environ))
        self._note(f"not handed on to jobs: {left_out}" if left_out else "")
        for line in answer.complaint.splitlines():
            self._note(line.strip())
        return job

    def state(self, job: str) -> Sighting:
        """A job that Slurm has forgotten, some minutes after its end, has ended."""
        answer = self._call(*slurmwords.query(job))
        if answer.code == 0:
            return slurmwords.sighting(job, answer.said)
        if slurmwords.says(answer.words, slurmwords.NO_SUCH_JOB):
            return Sighting("ended", reason=answer.words)
        raise ClusterError(f"squeue: {answer.words}")

    def stop(self, job: str) -> None:
        """SIGTERM, and SIGKILL after the site's KillWait. A node that does not answer has its processes for longer."""
        self._tell("scancel", job, unless=slurmwords.ALREADY_OVER)

    def hasten(self, job: str) -> None:
        """Slurm holds a job that it has requeued for two minutes; this ends that. One that runs or is over is left."""
        self._tell("scontrol", "update", f"JobId={job}", "StartTime=now", unless=slurmwords.NOT_WAITING)

    def close(self) -> None:
        pass

    # --- commands ---------------------------------------------------------------------

    def _sbatch(self, errand: Errand, *more: str) -> Answer:
        words = slurmwords.submission(errand)
        # The job gets the environment of sbatch, so nothing is added to it but what the job is to have.
        env = slurmwords.environment(os.environ) | dict(errand.env)
        return self._run([words[0], *more, *words[1:]], env, slurmwords.script(errand))

    def _tell(self, *words: str, unless: tuple[str, ...]) -> None:
        answer = self._call(*words)
        if answer.code and not slurmwords.says(answer.words, *unless):
            raise ClusterError(f"{words[0]}: {answer.words or f'exit {answer.code}'}")

    def _call(self, *words: str) -> Answer:
        return self._run(list(words), slurmwords.environment(os.environ) | {"LC_ALL": "C"})

    def _run(self, words: list[str], env: Mapping[str, str], given: str = "") -> Answer:
        try:
            return self._ran(words, env, given)
        except (OSError, ValueError) as error:  # a full TMPDIR, too: who checks hears it of every command
            raise ClusterError(f"{words[0]} can't be run: {error}") from None

    def _ran(self, words: list[str], env: Mapping[str, str], given: str) -> Answer:
        """Files, not pipes: what a site's wrapper leaves behind would hold a pipe open beyond the timeout."""
        with ExitStack() as stack:
            source, said, complaint = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            source.write(os.fsencode(given))
            source.seek(0)
            program = shutil.which(words[0]) or words[0]  # by our PATH: a job may have another
            try:
                done = subprocess.run(
                    [program, *words[1:]],
                    env=env,
                    stdin=source,
                    stdout=said,
                    stderr=complaint,
                    timeout=self.call_s,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                so_far = Answer(0, _text(said), _text(complaint)).words
                late = f"{words[0]} gave no answer within {self.call_s:g} s"
                raise Unheard(f"{late}: {so_far}" if so_far else late) from None
            return Answer(done.returncode, _text(said), _text(complaint))

    def _note(self, text: str) -> None:
        if text and text not in self.notes:
            self.notes.append(text)


def _refusal(words: str) -> ClusterError:
    return Unheard(words) if slurmwords.says(words, *slurmwords.BUSY) else ClusterError(words)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
