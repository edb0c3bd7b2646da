# Shared by the scripts of this folder: the coordinator's own environment, .venv in the repository.
# Source it; it leaves $python pointing at an interpreter that has the project and its tools.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_python() {
    local candidate
    for candidate in "${AIRLOCK_PYTHON:-}" python3 python3.11 python3.12 python3.13; do
        [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && {
            echo "$candidate"
            return
        }
    done
    echo "airlock: no Python 3.11 or newer found; name one in AIRLOCK_PYTHON" >&2
    return 1
}

# Made anew when pyproject.toml changed; a half-made one has no stamp.
ensure_venv() {
    local stamp=.venv/airlock-stamp want base
    want=$(sha256sum pyproject.toml | cut -d' ' -f1)
    if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
        base=$(find_python)
        echo "airlock: setting up .venv (about 20 s)" >&2
        rm -rf .venv
        "$base" -m venv .venv
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-input -e '.[dev]' 2>&1 |
            grep -v '^WARNING: Location' >&2 || true
        .venv/bin/python -c 'import zmq, msgpack, msgspec, psutil, rich, ruamel.yaml, scipy, pytest, xdist, hypothesis, mypy'
        echo "$want" >"$stamp"
    fi
    python=$PWD/.venv/bin/python
}

ensure_venv
