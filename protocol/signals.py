"""The signal that makes a Python process of a worker's tree write down what its threads are doing.

Real-time, so that it means nothing to anybody else: Slurm and other batch
systems send USR1 and USR2 to whole jobs, torch's launcher passes them on, SGLang
ends itself at QUIT, samplers use PROF and ALRM, CUDA's debugger TRAP. glibc
keeps the first real-time ones for itself, and systemd has a use for some of the
next, but only where they are sent to PID 1.
"""

from __future__ import annotations

import signal

STACKS = int(signal.SIGRTMIN) + 7
