"""The process that a supervisor starts here for a model on other hosts (`node: spark2` in a service file).

    python -m firesteel.hosts.cluster.node_runner FOLDER MODEL

MODEL is a `NodeModel` as JSON. The model is started on every node, where it has its own supervisor, and
watched from here. A replica that is lost is started again while others serve; when none is left, this process
ends, and its supervisor here decides about another start. It stops the model on the nodes when it ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from firesteel.edge.home import Home, write_text
from firesteel.edge.host.process import uptime
from firesteel.edge.host.signals import cancel_on_signals
from firesteel.edge.http import engine_client
from firesteel.errors import FiresteelError
from firesteel.hosts.cluster.on_nodes import down_on_node, is_gone, up_on_node
from firesteel.run.service import WHY_FILE
from firesteel.service_file import NodeModel
from firesteel.values import from_json

_POLL_S = 1.0
_SILENT_S = 12.0
"""Without an answer for so long, the node is asked whether the model still runs there."""
_RETRY_S = 30.0


class NodeRunner:
    def __init__(self, home: Home, model: NodeModel) -> None:
        self.home, self.model = home, model
        self.serving: set[str] = set()

    async def run(self) -> str | None:
        """Why it ended; None: on request."""
        nodes = tuple(self.model.addresses)
        watches: list[asyncio.Task[str]] = []
        try:
            for result in await asyncio.gather(*map(self._up, nodes), return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result
            watches = [asyncio.create_task(self._keep(node)) for node in nodes]
            done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        except asyncio.CancelledError:
            return None
        except FiresteelError as error:
            return error.what
        finally:
            for task in watches:
                task.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
            await asyncio.gather(*(self._down(node) for node in nodes))

    async def _up(self, node: str) -> None:
        await up_on_node(self.home, self.model, node)
        self.serving.add(node)
        _say(f"{node}: {self.model.ask.name} is up")

    async def _keep(self, node: str) -> str:
        """Until no replica is left: why."""
        why = await self._until_lost(node)
        while True:
            self.serving.discard(node)
            _say(why)
            if not self.serving:
                return why
            await asyncio.sleep(_RETRY_S)
            try:
                await self._up(node)
                why = await self._until_lost(node)
            except FiresteelError as error:
                why = error.what

    async def _until_lost(self, node: str) -> str:
        url, answered_s = dict(zip(self.model.addresses, self.model.urls, strict=True))[node], uptime()
        while True:
            if await engine_client.status(f"{url}/health") == 200:
                answered_s = uptime()
            elif uptime() - answered_s > _SILENT_S:
                if why := await is_gone(self.home, self.model, node):
                    return why
                answered_s = uptime()  # its supervisor there is starting it again
            await asyncio.sleep(_POLL_S)

    async def _down(self, node: str) -> None:
        try:
            await down_on_node(self.home, self.model, node)
            _say(f"{node}: {self.model.ask.name} has stopped")
        except FiresteelError as error:
            _say(error.what)


def _say(text: str) -> None:
    print(f"nodes: {text}", flush=True)


async def _main(folder: Path, text: str) -> int:
    cancel_on_signals()
    (folder / WHY_FILE).unlink(missing_ok=True)
    runner = NodeRunner(Home(folder.parent.parent), from_json(NodeModel, json.loads(text)))
    why = await runner.run()
    if why:
        _say(why)
        write_text(folder / WHY_FILE, why)
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(_main(Path(sys.argv[1]), sys.argv[2])))
