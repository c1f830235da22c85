#!/bin/sh
# Makes .venv and installs hvdc into it: `tools/setup.sh run` for using it, `tools/setup.sh dev` for developing it.
# `dev` also installs system packages that tests need, where it may, and says what it could not install.
set -eu
cd "$(dirname "$0")/.."
mode=${1:-run}
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "setup: $python is older than 3.11; set PYTHON to a newer one, as in: make PYTHON=python3.12 demo" >&2
    exit 1
}

# Install Debian packages if this user may; returns non-zero otherwise.
install() {
    command -v apt-get >/dev/null || return 1
    if [ "$(id -u)" = 0 ]; then as_root=""; elif sudo -n true 2>/dev/null; then as_root="sudo -n"; else return 1; fi
    [ -n "${updated:-}" ] || { $as_root apt-get update -qq >/dev/null 2>&1 || return 1; updated=1; }
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq "$@" >/dev/null 2>&1
}

# need PROGRAM PACKAGES… : what its absence skips is said by the last argument.
need() {
    program=$1 package=$2 without=$3
    command -v "$program" >/dev/null && return 0
    echo "setup: installing $package"
    install $package || true
    command -v "$program" >/dev/null && return 0
    echo "setup: could not install $package; without it: $without"
}

"$python" -c 'import ensurepip' 2>/dev/null || install python3-venv || {
    echo "setup: this Python has no venv module; on Debian or Ubuntu: apt-get install python3-venv" >&2
    exit 1
}
[ -x .venv/bin/python ] || { echo "setup: making .venv"; "$python" -m venv .venv; }

if [ "$mode" = dev ]; then
    need cc "gcc libc6-dev" "the C reader is not built and its tests are skipped"
    need cmake cmake "the C reader is built with the cmake from PyPI"
    need clang clang "the C reader is not fuzzed"
    what='.[dev]'
else
    what='.'
fi
stamp=.venv/.installed-$mode
new=$(cat pyproject.toml constraints-dev.txt | cksum)
if [ "$(cat "$stamp" 2>/dev/null)" != "$new" ]; then
    echo "setup: installing hvdc and what it needs into .venv (PyTorch is large: this takes minutes the first time)"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-dev.txt -e "$what"
    echo "$new" >"$stamp"
fi
