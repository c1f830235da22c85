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
    [ -n "${updated:-}" ] || { $as_root apt-get update -qq >/dev/null 2>&1 || true; updated=1; }
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" </dev/null >/dev/null 2>&1
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

# An OpenCL device is a driver that registers itself and a loader that finds it; neither is a program.
has_opencl() {
    ls "${OCL_ICD_VENDORS:-/etc/OpenCL/vendors}"/*.icd >/dev/null 2>&1 && ldconfig -p 2>/dev/null | grep -q 'libOpenCL\.so'
}

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
has_venv() { "$python" -c 'import ensurepip, venv' 2>/dev/null; }
has_venv || install "python$version-venv" || install python3-venv || true
has_venv || {
    echo "setup: $python has no venv module; on Debian or Ubuntu: apt-get install python$version-venv" >&2
    exit 1
}
.venv/bin/python -m pip --version >/dev/null 2>&1 || {
    echo "setup: making .venv"
    rm -rf .venv
    "$python" -m venv .venv
}

need cc "gcc libc6-dev" "the runtime is not built: no hvdc run, and tests of C are skipped"
need make make "the runtime is not built: no hvdc run, and tests of C are skipped"
need c++ g++ "the runtime is not built: no hvdc run, and tests of C are skipped"
need ld.lld-22 "clang-22 lld-22" "artifacts carry no library for a phone's DSP, and its code is not tested"
has_opencl || {
    echo "setup: installing pocl-opencl-icd ocl-icd-libopencl1"
    install pocl-opencl-icd ocl-icd-libopencl1 || true
    has_opencl || echo "setup: could not install pocl-opencl-icd ocl-icd-libopencl1; without an OpenCL device: the GPU's" \
        "executor does not run, and the demo takes the NPU's alone"
}
if [ "$mode" = dev ]; then
    need adb adb "phones are not reached, and what deploys is not tested"
    need mksh "mksh toybox" "commands for a phone are tested with this machine's shell and programs, not Android's"
    need cmake cmake "the runtime is built with the cmake from PyPI"
    need clang clang "the C reader is not fuzzed, and nothing is compiled as for Android"
    need aarch64-linux-gnu-g++ g++-aarch64-linux-gnu "nothing is built for ARM"
    need chromium chromium "reports are not looked at in a browser"
    need qemu-aarch64 qemu-user "what is built for ARM is not run"
    need qemu-hexagon qemu-user "what is built for a phone's DSP is not run"
    need llvm-objdump-22 llvm-22 "the instructions of what is built for a phone's DSP are not looked at"
    [ "$(id -u)" = 0 ] || echo "setup: not root; tests that fill a small file system of their own are skipped"
    what='.[dev]'
else
    what='.[quality,runtime]'
fi
stamp=.venv/.installed-$mode
new=$(cat pyproject.toml constraints-dev.txt | cksum)
if [ "$(cat "$stamp" 2>/dev/null)" != "$new" ]; then
    echo "setup: installing hvdc and what it needs into .venv (PyTorch for Linux is several GB: the first time takes minutes)"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-dev.txt -e "$what"
    # Not for every machine: its wheels are for Linux on x86-64 with glibc 2.35 or newer, and Python up to 3.14.
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-dev.txt -e '.[qnn]' || {
        echo "setup: onnxruntime-qnn cannot be installed here; without it: decoders are not compiled for the phone's NPU,"
        echo "setup: and what needs its compiler or emulator is skipped"
    }
    ldconfig -p 2>/dev/null | grep -q libatomic.so.1 || install libatomic1 || true
    echo "$new" >"$stamp"
fi
