"""`vksched serve`: an HTTP server for a GGUF language model, with OpenAI's API."""

from __future__ import annotations

import re
from contextlib import closing

import click

from ..options import inputs
from ..options.picture_options import mmproj_option, open_projector
from ..options.precision_option import AUTO, FAST, chat_precision_option
from ..options.speculation_options import open_speculation, speculation_options

UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
MAX_SLOTS = 1024
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def _size(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """Return a size in bytes, from "2GiB"."""
    found = re.fullmatch(r"(\d{1,12})\s*(|KiB|MiB|GiB)", value.strip())
    if found is None:
        raise click.BadParameter(f"{value!r} is no size such as 512MiB or 2GiB.")
    return int(found[1]) * UNITS[found[2]]


def _slots(ctx: click.Context, param: click.Parameter, value: str) -> int | None:
    """Return a number of slots, or None from "auto"."""
    if value == AUTO:
        return None
    if not value.isdecimal() or not 1 <= int(value[:9]) <= MAX_SLOTS:
        raise click.BadParameter(f"{value!r} is neither auto nor a number from 1 to {MAX_SLOTS}.")
    return int(value)


@click.command()
@click.argument("model_file", metavar="MODEL.gguf")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port to listen on; 0 selects a free one.",
)
@inputs.devices_option
@click.option(
    "-c",
    "--ctx-size",
    "ctx",
    type=click.IntRange(1),
    help="Context length of a slot in tokens.  [default: 4096, or the model's limit]",
)
@click.option(
    "--slots",
    callback=_slots,
    default=AUTO,
    show_default=True,
    metavar="N",
    help="Number of requests that run at the same time; auto: as memory allows.",
)
@click.option(
    "--split",
    type=click.Choice(["auto", "layers", "pipeline", "replicas"]),
    default=AUTO,
    show_default=True,
    help="Use of several GPUs: layers of one engine; a pipeline of one engine for each GPU; or a "
    "replica of the model on each GPU. auto: the fastest prediction.",
)
@click.option("--explain", is_flag=True, help="Print the predicted rates of all splits, and exit.")
@inputs.cache_type_option("Element type of the KV cache.")
@chat_precision_option
@click.option(
    "--alias", "names", multiple=True, metavar="NAME", help="Model name in requests (repeatable)."
)
@click.option(
    "--api-key-file",
    metavar="FILE",
    help="File with one API key per line, which others cannot read; requests need one of them.",
)
@click.option(
    "--cache-ram",
    callback=_size,
    default="2GiB",
    show_default=True,
    metavar="SIZE",
    help="Host memory for the KV cache of idle prompts; 0 disables it.",
)
@click.option(
    "--max-queue",
    type=click.IntRange(0, 4096),
    default=64,
    show_default=True,
    help="Maximum number of waiting requests; others are refused with status 429.",
)
@speculation_options
@mmproj_option
@click.option(
    "--pooling",
    type=click.Choice(["mean", "cls", "last"]),
    help="Pooling of /v1/embeddings.  [default: as in the file]",
)
@click.option(
    "--cors-origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="Site whose pages may send requests from a browser, or * (repeatable).",
)
@click.option("--ssl-certfile", metavar="FILE", help="Certificate for HTTPS, in PEM.")
@click.option("--ssl-keyfile", metavar="FILE", help="Private key of the certificate, in PEM.")
def serve(
    model_file: str,
    host: str,
    port: int,
    devices: str | None,
    ctx: int | None,
    slots: int | None,
    split: str,
    explain: bool,
    cache_type: str | None,
    precision: str,
    names: tuple[str, ...],
    api_key_file: str | None,
    cache_ram: int,
    max_queue: int,
    ngram: bool,
    draft: str | None,
    draft_device: str | None,
    mmproj: str | None,
    pooling: str | None,
    origins: tuple[str, ...],
    ssl_certfile: str | None,
    ssl_keyfile: str | None,
) -> None:
    """Serve a GGUF language model over HTTP, with OpenAI's API and a chat page.

    Ctrl-C ends the server within 30 seconds, and a second one at once. Exit code 0, or 1 with an
    error message; 130 if Ctrl-C comes twice, or before the server listens.
    """
    if not ssl_certfile:
        inputs.need({"--ssl-keyfile": ssl_keyfile}, "--ssl-certfile")
    from ...serve.packages import require_packages

    require_packages()
    from ...common.user_warning import warn_user
    from ...importers import load_gguf
    from ...scheduler.scheduler import Scheduler
    from ...serve.api_keys import ApiKeys, read_api_keys
    from ...serve.application import app
    from ...serve.build_engine import explain_split
    from ...serve.heap_arenas import limit_arenas
    from ...serve.http_server import Listener
    from ...serve.interrupts import Interrupts
    from ...serve.request_guard import LOOPBACK_HOSTS

    keys = read_api_keys(api_key_file) if api_key_file else ApiKeys()
    is_local = host in LOOPBACK
    if not is_local and not keys:
        warn_user(
            f"everyone who reaches {host}:{port} may use this server; --api-key-file restricts it"
        )
    by_device = precision in (AUTO, FAST)
    own = None if by_device else precision
    if explain:
        with (
            open_speculation(ngram, draft, draft_device) as speculation,
            Scheduler(inputs.parse_devices(devices), precision=own) as sched,
        ):
            model, words = load_gguf(model_file), precision if by_device else None
            about = model, sched, ctx, slots, split, cache_type, words, speculation
            click.echo(explain_split(*about))
        return
    limit_arenas()
    with Listener(host, port) as listener, Interrupts(until_exit=True) as interrupts:
        model, projector = load_gguf(model_file), open_projector(mmproj)
        with (
            open_speculation(ngram, draft, draft_device) as speculation,
            Scheduler(inputs.parse_devices(devices), precision=own) as sched,
        ):
            with inputs.progress_bars(False) as progress:
                application = app(
                    model,
                    sched,
                    ctx=ctx,
                    slots=slots,
                    split=split,
                    names=names,
                    cache_type=cache_type,
                    precision=precision if by_device else None,
                    pooling=pooling,
                    cache_ram=cache_ram,
                    max_queue=max_queue,
                    speculation=speculation,
                    projector=projector,
                    api_keys=keys,
                    cors_origins=origins,
                    hosts=LOOPBACK_HOSTS if is_local and not keys else (),
                    progress=progress,
                    prepare=True,
                )
            scheme = "https" if ssl_certfile else "http"
            if application.split is not None and len(application.split.engines) > 1:
                click.echo(application.split.explain(), err=True)
            where = f"{(*names, model.name)[0]} at {scheme}://{listener.address}"
            with closing(application):
                listener.run(
                    application,
                    on_start=lambda: click.echo(where, err=True),
                    interrupts=interrupts,
                    ssl_certfile=ssl_certfile,
                    ssl_keyfile=ssl_keyfile,
                )
