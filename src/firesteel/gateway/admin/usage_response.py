"""`GET /api/usage`: what `firesteel usage` shows."""

from __future__ import annotations

import asyncio
import json
import time

from aiohttp import web

from firesteel.edge.home import Home
from firesteel.errors import FiresteelError, UsageError
from firesteel.gateway.admin.commands import AdminRejected
from firesteel.gateway.admin.usage import csv_text, parse_query, read_report
from firesteel.gateway.interfaces import Caller, Rejection
from firesteel.values import plain


async def usage_response(request: web.Request, caller: Caller, home: Home) -> web.Response:
    """A key that is no admin's sees its own."""
    options: dict[str, str | None] = dict(request.query)
    if not caller.is_admin:
        options["key"] = caller.name
    try:
        report = await asyncio.to_thread(read_report, home, parse_query(options), time.time())
    except UsageError as error:
        raise AdminRejected(Rejection(400, "bad_request", f"{error.what}.")) from error
    except FiresteelError as error:
        raise AdminRejected(Rejection(503, "log_unreadable", f"{error.what}.")) from error
    is_csv = options.get("format") == "csv"
    text = csv_text(report) if is_csv else json.dumps({"document": "firesteel.usage/1", **plain(report)})
    kind, headers = "text/csv" if is_csv else "application/json", {"Cache-Control": "no-store"}
    return web.Response(text=text, content_type=kind, headers=headers)
