#!/bin/sh
# Usage: need_python.sh PYTHON. Fails with one sentence unless PYTHON can make our environment.
hint="name one, as in 'make run PYTHON=python3.12'."
if ! version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); then
    echo "error: '$1' does not run: Python 3.10 to 3.13 is needed: $hint" >&2
    exit 1
fi
case $version in
3.10 | 3.11 | 3.12 | 3.13) ;;
*)
    echo "error: '$1' is Python $version, but Python 3.10 to 3.13 is needed: $hint" >&2
    exit 1
    ;;
esac
if ! "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    echo "error: '$1' cannot make virtual environments:" \
        "install its venv module, for example with 'apt-get install python3-venv'." >&2
    exit 1
fi
