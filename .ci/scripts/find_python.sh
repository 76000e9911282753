#!/bin/sh
# Prints the interpreter to build with: $PYTHON when set, else python3.11, else python3; 3.11 or newer, and it must run
# (a name on PATH can be a shim of a version manager that leads nowhere).
check='import sys; sys.exit(sys.version_info < (3, 11))'
for candidate in ${PYTHON:-python3.11 python3}; do
  if "$candidate" -c "$check" >/dev/null 2>&1; then
    echo "$candidate"
    exit 0
  fi
done
echo "no Python 3.11 or newer found (tried: ${PYTHON:-python3.11, python3}); name one with: make setup PYTHON=..." >&2
exit 1
