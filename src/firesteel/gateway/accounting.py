"""What requests cost their keys: rate limits and budgets, metrics, charges and the request log."""

from __future__ import annotations

import sqlite3
import time

from firesteel.edge.home import Home
from firesteel.gateway.admin.meter import Meter, ModelCounters, route_kind
from firesteel.gateway.admin.request_log import RequestLog, log_path
from firesteel.gateway.admin.request_rows import charged_tokens
from firesteel.gateway.admin.usage import spent_tokens
from firesteel.gateway.budgets import Budgets
from firesteel.gateway.interfaces import Caller, PendingRequest, Rejection, RequestOutcome
from firesteel.gateway.keys import KeyRing
from firesteel.gateway.rate_limits import RateLimiter


class Accounting:
    def __init__(self, home: Home, ring: KeyRing, log: RequestLog, *, logs_prompts: bool) -> None:
        self.meter = Meter()
        self.log = log
        self.rates, self.budgets = RateLimiter(), Budgets()
        self._log_path = log_path(home)
        self._logs_prompts = logs_prompts
        self.use_limits(ring)

    def use_limits(self, ring: KeyRing) -> None:
        limits = ring.limits()
        self.rates.change(limits, time.monotonic())
        budgets = {name: each.budget for name, each in limits.items() if each.budget}
        self.budgets.change(budgets, self._spent, time.time())

    def _spent(self, key: str, since: float) -> int:
        """A log that cannot be read is set aside and begun anew by its thread, which says so."""
        try:
            return spent_tokens(self._log_path, key, since)
        except sqlite3.Error:
            return 0

    def check_budget(self, caller: Caller) -> Rejection | None:
        """When a request is complete, not before: a key that has used its budget can still ask for its
        usage."""
        return self.budgets.admit(caller.name, time.time())

    def record(
        self,
        request: PendingRequest,
        outcome: RequestOutcome,
        replica: int = 0,
        counters: ModelCounters | None = None,
    ) -> None:
        """A request has ended. It is charged and logged with the same time, so that the sums of a day are
        the same."""
        caller, usage, now = request.caller, outcome.usage, time.time()
        key, route = caller.name, route_kind(request.path)
        (counters or self.meter.counters(request.model, key)).finish(route, outcome)
        is_charged = False
        if usage is not None:
            if key in self.rates.limited:
                self.rates.charge(key, charged_tokens(usage), time.monotonic())
            if caller.has_budget:
                is_charged = True
                self.budgets.charge(key, charged_tokens(usage), now)
        prompt = bytes(request.body) if self._logs_prompts else None
        self.log.add(now, key, request.model, route, outcome, replica, prompt, is_charged)
