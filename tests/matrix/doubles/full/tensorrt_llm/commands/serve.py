"""A double of the tests; not NVIDIA's package. Its options have the attributes of click's."""

from types import SimpleNamespace as Made


def _option(opts, kind, default, **more):
    facts = {"is_flag": False, "multiple": False, "name": opts[0].lstrip("-")}
    choices = {"choices": more.pop("choices")} if "choices" in more else {}
    return Made(opts=opts, type=Made(name=kind, **choices), default=default, **{**facts, **more})


serve = Made(
    params=[
        _option(["model"], "text", None),
        _option(["--host"], "text", "localhost"),
        _option(["-l", "--log_level"], "choice", "info", choices=["info", "error"]),
        _option(["--trust"], "boolean", False, is_flag=True),
    ]
)
main = Made(commands={"serve": serve})
