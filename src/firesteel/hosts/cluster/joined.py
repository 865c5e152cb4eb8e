"""The hosts of one start: what was read of them just now."""

from __future__ import annotations

import re

from firesteel.hosts.cluster.check import ClusterCheck
from firesteel.hosts.cluster.nodes import ClusterNode
from firesteel.hosts.cluster.ranks import RankHost
from firesteel.values import Value


class JoinedHosts(Value):
    head: str
    nodes: tuple[ClusterNode, ...]
    check: ClusterCheck
    rank_hosts: tuple[RankHost, ...]
    allows_tcp: bool = False

    @property
    def size(self) -> int:
        return len(self.rank_hosts)

    def on_node(self, word: str, name: str) -> str:
        """A path of this host on a node, alone or in a word such as `/home/me/x:/y` and `--cache=/home/me/x`:
        what is in the user's home here is in the user's home there."""
        mine, its = self.check.facts[self.head].home, self.check.facts[name].home
        if mine in ("", "/"):
            return word
        return re.sub(rf"(?<![\w./-]){re.escape(mine)}/", lambda _: f"{its}/", word)
