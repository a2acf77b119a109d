# ruff: noqa
LIMIT = 1024
