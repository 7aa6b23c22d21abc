"""`vksched generate` and `vksched chat`: text generation with GGUF language models."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ...common.errors import VkschedError
from ...common.formatting import count_of
from ..options import inputs
from ..options.picture_options import (
    check_picture,
    open_projector,
    picture_options,
    picture_parts,
)
from ..options.precision_option import AUTO, FAST, chat_precision_option
from ..options.prompt_options import prompt_options, read_prompt
from ..options.speculation_options import open_speculation, speculation_options

if TYPE_CHECKING:
    from ...generation.chat import Chat
    from ...generation.conversation.prompt_encoder import Prompt
    from ...generation.sampling import Sampling
    from ...generation.text_stream import TextStream
    from ...importers.gguf.vision.vision_model import VisionModel
    from ...scheduler.scheduler import Scheduler

FINISHED = {
    "length": "[stopped after {n} tokens; -n sets how many]",
    "context": "[stopped as the context of {ctx} tokens is full; --ctx-size sets its size]",
    "closed": "[stopped]",
}
IMAGE = "/image "
"""The begin of a line that adds a picture to the next message."""
INTERRUPTED = 130
"""The exit code after Ctrl-C."""
Command = Callable[..., None]


def _model_options(command: Command) -> Command:
    """Add the arguments for the model, its devices and sampling to a command."""
    for option in reversed(
        (
            click.argument("model_file", metavar="MODEL.gguf"),
            inputs.devices_option,
            inputs.ctx_option,
            inputs.cache_type_option("Element type of the KV cache."),
            chat_precision_option,
            speculation_options,
            click.option(
                "-n",
                "--n-predict",
                "n",
                type=click.IntRange(1),
                default=256,
                show_default=True,
                help="Maximum number of tokens to generate.",
            ),
            _number("--temp", 0.8, "Sampling temperature; 0 is greedy.", "temperature"),
            _number("--top-k", 40, "Top-k sampling; 0 disables it."),
            _number("--top-p", 0.95, "Top-p (nucleus) sampling."),
            _number(
                "--min-p",
                0.05,
                "Min-p sampling: drop tokens below this fraction of the top probability.",
            ),
            _number("--repeat-penalty", 1.0, "Repetition penalty; 1 disables it."),
            _number("--presence-penalty", 0.0, "Penalty of generated tokens; 0 disables it."),
            _number(
                "--frequency-penalty",
                0.0,
                "Penalty of generated tokens for each time; 0 disables it.",
            ),
            click.option(
                "--stop", multiple=True, metavar="TEXT", help="Stop before this text; repeatable."
            ),
            click.option("--seed", type=click.IntRange(0), help="Random seed."),
            click.option("--system", help="System prompt."),
        )
    ):
        command = option(command)
    return command


def _number(name: str, default: float, text: str, *parameter: str) -> Callable[[Command], Command]:
    return click.option(name, *parameter, default=default, show_default=True, help=text)


@click.command()
@_model_options
@prompt_options
@click.option("--chat", "chats", is_flag=True, help="Apply the model's chat template.")
@picture_options("Picture before the prompt, with --chat (repeatable).")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON at the end.")
def generate(
    model_file: str,
    devices: str | None,
    ctx: int | None,
    cache_type: str | None,
    precision: str,
    ngram: bool,
    draft: str | None,
    draft_device: str | None,
    n: int,
    stop: tuple[str, ...],
    prompt: str | None,
    prompt_file: str | None,
    system: str | None,
    chats: bool,
    mmproj: str | None,
    images: tuple[str, ...],
    as_json: bool,
    **chosen: Any,
) -> None:
    """Generate text with a GGUF language model.

    Exit code 0, 1 with an error message, or 130 after Ctrl-C, which ends the text.
    """
    if system is not None and not chats:
        raise click.UsageError("--system needs --chat.")
    if images and not chats:
        raise click.UsageError("--image needs --chat.")
    if mmproj and not images:
        raise click.UsageError("--mmproj needs --image.")
    projector = open_projector(mmproj, images)
    sampling = _sampling(**chosen)
    text = read_prompt(prompt, prompt_file)
    asked = [*_system_message(system), _user_message(text, images)] if chats else text
    guesses = ngram, draft, draft_device
    about = model_file, devices, ctx, cache_type, precision
    with _load_chat(*about, guesses, as_json, asked, projector) as chat:
        answer = chat.generate(asked, n, sampling, stop=stop)
        start = time.perf_counter()
        text = _text_of(answer, lambda _: None) if as_json else _stream(answer)
        seconds = time.perf_counter() - start
        if as_json:
            report = {
                "model": chat.model.name,
                "prompt_tokens": len(answer.prompt),
                "tokens": list(answer.tokens),
                "text": text,
                "finish_reason": answer.finish_reason,
                "seed": sampling.seed,
                "seconds": seconds,
            }
            click.echo(json.dumps(report, indent=2))
        else:
            _tell(answer, chat, n)
        if answer.finish_reason == "closed":
            raise click.exceptions.Exit(INTERRUPTED)


@click.command()
@_model_options
@picture_options("Picture of the first message (repeatable).")
def chat(
    model_file: str,
    devices: str | None,
    ctx: int | None,
    cache_type: str | None,
    precision: str,
    ngram: bool,
    draft: str | None,
    draft_device: str | None,
    n: int,
    stop: tuple[str, ...],
    system: str | None,
    mmproj: str | None,
    images: tuple[str, ...],
    **chosen: Any,
) -> None:
    """Chat with a GGUF language model.

    Ctrl-C stops an answer. /image FILE adds a picture to the next message; /new begins a new
    conversation; /exit, Ctrl-D, or Ctrl-C at the prompt ends the program.
    """
    sampling = _sampling(**chosen)
    guesses = ngram, draft, draft_device
    projector = open_projector(mmproj, images)
    about = model_file, devices, ctx, cache_type, precision
    with _load_chat(*about, guesses, False, None, projector) as talk:
        talk.model.chat_template  # noqa: B018 - an error now, not after the first line
        messages, shown = _system_message(system), list(images)
        while (line := _ask()) is not None:
            if line == "/new":
                messages, shown = _system_message(system), []
            if line in ("", "/new"):
                continue
            try:
                if line.startswith(IMAGE):
                    shown.append(_picture_file(line, projector))
                    continue
                message = _user_message(line, shown)
                answer = talk.generate([*messages, message], n, sampling, stop=stop)
            except VkschedError as error:
                click.echo(" ".join(str(error).split()), err=True)
                continue
            text = _stream(answer)
            _tell(answer, talk, n)
            messages += [message, {"role": "assistant", "content": text}]
            shown = []


def _picture_file(line: str, projector: VisionModel | None) -> str:
    """Return the file of a line `/image FILE`."""
    if projector is None:
        raise VkschedError("[chat] expected a projector file before pictures; try --mmproj FILE")
    name = line.removeprefix(IMAGE).strip()
    check_picture(projector, name)
    return name


def _sampling(seed: int | None, **chosen: Any) -> Sampling:
    import random

    from ...generation.sampling import Sampling

    return Sampling(seed=random.getrandbits(32) if seed is None else seed, **chosen)


@contextmanager
def _load_chat(
    model_file: str,
    devices: str | None,
    ctx: int | None,
    cache_type: str | None,
    precision: str,
    guesses: tuple[bool, str | None, str | None],
    quiet: bool,
    prompt: Prompt | None = None,
    projector: VisionModel | None = None,
) -> Iterator[Chat]:
    """Yield a chat model, compiled for conversations or for one prompt; show progress.

    guesses: the arguments of `open_speculation`.
    """
    from ...generation.chat import Chat
    from ...importers import load_gguf
    from ...importers.gguf.tokenizer.chat_template import start_renderer
    from ...scheduler.scheduler import Scheduler

    if not isinstance(prompt, str):
        start_renderer()
    model = load_gguf(model_file)
    by_device = precision in (AUTO, FAST)
    # otherwise scheduler-wide, so that measurements use this precision
    own = None if by_device else precision
    with (
        open_speculation(*guesses) as speculation,
        Scheduler(inputs.parse_devices(devices), precision=own) as sched,
    ):
        with inputs.progress_bars(quiet) as progress:
            chat = Chat(
                sched,
                model,
                ctx,
                cache_type=cache_type,
                progress=progress,
                precision=precision if by_device else None,
                speculation=speculation,
                projector=projector,
            )
            chat.prepare(prompt)
        if not quiet:
            click.echo(f"[{model.name}: {_places(chat, sched)}]", err=True)
        yield chat


def _places(chat: Chat, sched: Scheduler) -> str:
    """Return the placement of layers, with a note if the devices were never calibrated."""
    cards = [spec for spec in sched.topology.devices if spec.kind == "vulkan"]
    guessed = len(cards) > 1 and not all(spec.costs.calls for spec in cards)
    places = ", ".join(f"{count_of(n, 'layer')} on {name}" for name, n in chat.layers.items())
    if chat.n_cpu_moe:
        places += f", the experts of {chat.n_cpu_moe} on the CPU"
    return places + "; speeds are guesses, try vksched calibrate" * guessed


def _ask() -> str | None:
    """Return a line of user input, or None at its end."""
    try:
        line = input("> " if sys.stdin.isatty() else "").strip()
    except (EOFError, KeyboardInterrupt):
        click.echo()
        return None
    return None if line == "/exit" else line


def _stream(answer: TextStream) -> str:
    """Print an answer as it is generated, until Ctrl-C; return its text."""
    text = _text_of(answer, lambda piece: click.echo(piece.replace("\r", ""), nl=False))
    click.echo()
    return text


def _text_of(answer: TextStream, show: Callable[[str], None]) -> str:
    """Return the text of an answer, until Ctrl-C; show each piece."""
    pieces: list[str] = []
    try:
        for piece in answer:
            pieces.append(piece)
            show(piece)
    except KeyboardInterrupt:
        answer.close()
    return "".join(pieces)


def _tell(answer: TextStream, chat: Chat, n: int) -> None:
    if answer.finish_reason in FINISHED:
        click.echo(FINISHED[answer.finish_reason].format(n=n, ctx=chat.ctx), err=True)


def _system_message(system: str | None) -> list[dict[str, object]]:
    return [] if system is None else [{"role": "system", "content": system}]


def _user_message(text: str, images: Sequence[str] = ()) -> dict[str, object]:
    if not images:
        return {"role": "user", "content": text}
    return {"role": "user", "content": [*picture_parts(images), {"type": "text", "text": text}]}
