#!/bin/sh
# TVM links every saved executable with a C++ compiler: say so before anything is installed.
help="install one, for example with 'apt-get install g++' or 'dnf install gcc-c++',"
help="$help or set CXX to the path of yours."
if [ -n "${CXX:-}" ]; then # what TVM then uses, whatever else there is
    command -v "$CXX" >/dev/null 2>&1 && exit 0
    echo "error: no C++ compiler: CXX is '$CXX', which is no command: $help" >&2
    exit 1
fi
for name in g++ clang++ c++; do
    command -v "$name" >/dev/null 2>&1 && exit 0
done
echo "error: no C++ compiler found (looked for \$CXX, g++, clang++ and c++): $help" >&2
exit 1
