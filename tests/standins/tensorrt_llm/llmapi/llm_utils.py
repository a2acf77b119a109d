"""Helpers that upstream's model file uses."""


def update_llm_args_with_extra_dict(llm_args, extra):
    """`llm_args` with `extra` over them."""
    return {**llm_args, **extra}
