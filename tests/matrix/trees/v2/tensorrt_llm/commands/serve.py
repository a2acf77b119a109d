# ruff: noqa
import click

from tensorrt_llm.builder import BuildConfig
from tensorrt_llm.logger import severity_map


def help_info_with_stability_tag(text, tag):
    return f":tag:`{tag}` {text}"


class ChoiceWithAlias(click.Choice):
    def __init__(self, choices, aliases):
        super().__init__(choices)
        self.aliases = aliases


@click.command("serve")
@click.argument("model", type=str)
@click.option("--host", type=str, default="localhost", help="The host.")
@click.option(
    "--backend",
    type=ChoiceWithAlias(["pytorch", "tensorrt"], {"trt": "tensorrt"}),
    default="pytorch",
    help=help_info_with_stability_tag("The backend.", "beta"),
)
@click.option("-l", "--log_level", type=click.Choice(severity_map.keys()), default="info")
@click.option("--max_seq_len", type=int, default=BuildConfig.model_fields["max_seq_len"].default)
@click.option("--tensor_parallel_size", "--tp_size", type=int, default=1)
@click.option("--trust", is_flag=True, default=False)
@click.option("--modules", type=click.Path(exists=True), default=None, multiple=True)
@click.option("--parser", type=click.Choice(sorted({"made", "at", "runtime"})), default=None)
def serve(**given):
    """Serve a model."""


@click.command("encoder")
@click.option("--port", type=int, default=8000)
def serve_encoder(**given):
    """Serve an encoder."""


main = click.Group(commands={"serve": serve, "mm_embedding_serve": serve_encoder})
