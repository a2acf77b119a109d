#!/bin/sh
# Prints a Python that engineroom supports: python3.11 where it is there, else the first found.
for name in python3.11 python3.12 python3.13 python3.10 python3; do
  if "$name" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null; then
    echo "$name"
    exit 0
  fi
done
echo "no Python 3.10 to 3.13 with venv found; install one, e.g. apt-get install python3.11 python3.11-venv" >&2
exit 1
