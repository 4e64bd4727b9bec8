"""`refold inspect LOG`: a log on a page in the browser, served from this machine to its own user."""

import secrets
import socket
import sys
from typing import Annotated

import typer

from refold.commands.execution import EXIT_OK, LogArgument, command, option
from refold.commands.output import console, write_exact, write_paragraph


@command
async def inspect(
    log: LogArgument,
    port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="0 = a free one.")] = 0,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Where it listens; others than this machine's see the log.")
    ] = "127.0.0.1",
    name: Annotated[
        list[str] | None,
        option("--name", "NAME", "Another name under which browsers reach it, as behind a tunnel. May be given again."),
    ] = None,
) -> int:
    """Look at a log in the browser: its sessions, each as a conversation and on a time line, at any version.

    It writes the address to open, with a token that is valid until it ends; without that nothing of the log is shown.
    The log may be in use: the page follows it, and what is allowed, denied or answered there goes to the runtime that
    owns it. Ctrl-C ends it. It needs `pip install refold[inspect]`.
    """
    from refold.events.core.errors import needed_by
    from refold.page.pages import opened_pages

    with needed_by("pages", extra="inspect"):
        import uvicorn

        from refold.serving.patience import ImpatientProtocol
        from refold.serving.routes import page_application
    token = secrets.token_urlsafe(32)
    async with opened_pages(log) as pages:
        with _listening(host, port) as listener:
            port = listener.getsockname()[1]
            hosts = ("127.0.0.1", "localhost", "[::1]", _in_address(host), *(name or ()))
            app = page_application(pages, token=token, hosts=hosts, ending=lambda: server.should_exit)
            shown = "127.0.0.1" if host in ("0.0.0.0", "::") else _in_address(host)  # noqa: S104 - compared
            write_exact(console(), f"http://{shown}:{port}/#token={token}")
            write_paragraph(console(), "Open this address; Ctrl-C ends the page.")
            sys.stdout.flush()
            config = uvicorn.Config(
                app,
                http=ImpatientProtocol,
                ws="none",
                lifespan="off",
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
            )
            server = uvicorn.Server(config)
            await server.serve(sockets=[listener])
    return EXIT_OK


def _listening(host: str, port: int) -> socket.socket:
    from refold.events.core.errors import ConfigError

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(f"nothing can listen at {host}, port {port}: {error.strerror or error}") from error


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host
