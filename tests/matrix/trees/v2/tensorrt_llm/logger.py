# ruff: noqa
import logging

severity_map = {
    "error": [logging.ERROR],
    "info": [logging.INFO],
}
