#!/usr/bin/env python3
"""Two Sparks for a throwaway cluster that has no nodes: kubelet, kube-proxy and volumes, without containers.

    scripts/kubernetes_stand_in.py --context NAME --throwaway

It makes Node objects and volumes, which are cluster-wide. For each pod that is scheduled to one of its nodes
it starts a process that answers with the name of its variant, and reports the pod as kubelet does: ready when
/health answers, gone when the process has ended after SIGTERM. `serve` listens for a Service and relays each
connection to a ready endpoint of its EndpointSlices. Admission, controllers and scheduler are the cluster's
own; images, engines, mounts and DNS are not tried.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import Any

NODES = {"spark1": "arm64", "spark2": "arm64"}
POLL_S = 0.1
WARM_UP_S = 1.0
_SERVER = r"""
import http.server, json, os, signal, sys, threading, time
ready_at = time.monotonic() + float(sys.argv[2])
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.path == "/health" and time.monotonic() < ready_at:
            self.send_error(503)
            return
        body = json.dumps({"variant": sys.argv[1], "pod": sys.argv[3]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.path == "/slow":
            time.sleep(3)
        self.wfile.write(body)
    def log_message(self, *words): pass
class Server(http.server.ThreadingHTTPServer):
    daemon_threads, block_on_close, request_queue_size = False, True, 128
server = Server(("127.0.0.1", 0), Handler)
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
print(server.server_port, flush=True)
server.serve_forever()
server.server_close()
"""


class Api:
    """The API server through `kubectl proxy`, which has the credentials."""

    def __init__(self, context: str) -> None:
        words = ["kubectl", "--context", context, "proxy", "--port=0"]
        self._proxy = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self._proxy.stdout
        found = re.search(r":(\d+)", self._proxy.stdout.readline())
        assert found, "kubectl proxy did not start"
        self._url = f"http://127.0.0.1:{found[1]}"

    def __call__(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": kind}, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def try_to(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Any:
        """None where the object is there already, or gone."""
        try:
            return self(method, path, body, kind)
        except urllib.error.HTTPError as error:
            if error.code not in (404, 409):
                raise
            return None

    def close(self) -> None:
        self._proxy.terminate()
        self._proxy.wait(10)


class _Pod:
    """The process of one pod."""

    def __init__(self, pod: dict[str, Any], address: str) -> None:
        meta = pod["metadata"]
        self.path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        self.uid, self.address, self.is_ready = meta["uid"], address, False
        labels = meta.get("labels", {})
        self.variant = labels.get("app.kubernetes.io/instance", meta["name"])
        words = [sys.executable, "-c", _SERVER, self.variant, str(WARM_UP_S), meta["name"]]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.started_at, self.ended_at = time.monotonic(), 0.0
        assert self.process.stdout
        self.port = int(self.process.stdout.readline())
        self.is_stopping = False

    def is_warm(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2):
                return True
        except OSError:
            return False

    def status(self) -> dict[str, Any]:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        words = {"status": "True" if self.is_ready else "False", "lastTransitionTime": now}
        kinds = ("Ready", "ContainersReady")
        true = {"status": "True", "lastTransitionTime": now}
        return {
            "phase": "Running",
            "startTime": now,
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "conditions": [{"type": "Initialized", **true}, *({"type": kind, **words} for kind in kinds)],
        }


class Sparks(threading.Thread):
    def __init__(self, api: Api, nodes: dict[str, str] | None = None) -> None:
        super().__init__(daemon=True)
        self._api, self._nodes, self._done = api, nodes or NODES, threading.Event()
        self.pods: dict[str, _Pod] = {}
        self.ran: list[_Pod] = []
        """Every pod since the start, for who ran when."""
        self._endpoints: dict[tuple[str, str], list[str]] = {}
        self._count = 0
        for name, arch in self._nodes.items():
            self._make_node(name, arch)
        for index in range(24):
            self._make_volume(index)

    def _make_node(self, name: str, arch: str) -> None:
        labels = {"kubernetes.io/os": "linux", "kubernetes.io/arch": arch, "kubernetes.io/hostname": name}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        self._api.try_to("POST", "/api/v1/nodes", node)
        has = {"cpu": "20", "memory": "121Gi", "pods": "110", "nvidia.com/gpu": "1"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        status = {"status": {"capacity": has, "allocatable": has, "conditions": [ready]}}
        self._api("PATCH", f"/api/v1/nodes/{name}/status", status, "application/strategic-merge-patch+json")
        untainted = {"spec": {"taints": None, "unschedulable": None}}
        self._api("PATCH", f"/api/v1/nodes/{name}", untainted, "application/merge-patch+json")

    def _make_volume(self, index: int) -> None:
        spec = {
            "capacity": {"storage": "500Gi"}, "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": f"/nowhere/{index}"}, "persistentVolumeReclaimPolicy": "Retain",
        }  # fmt: skip
        meta = {"name": f"stand-in-{index}", "labels": {"stand-in": "yes"}}
        volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": meta, "spec": spec}
        self._api.try_to("POST", "/api/v1/persistentvolumes", volume)

    def run(self) -> None:
        while not self._done.wait(POLL_S):
            self._free_volumes()
            items = self._api("GET", "/api/v1/pods")["items"]
            self._endpoints = self._read_endpoints()
            there = {item["metadata"]["uid"] for item in items}
            for item in items:
                if item["spec"].get("nodeName") in self._nodes:
                    self._tend(item)
            for uid in [uid for uid in self.pods if uid not in there]:
                self._end(self.pods.pop(uid))

    def _tend(self, item: dict[str, Any]) -> None:
        pod = self.pods.get(item["metadata"]["uid"])
        if pod is None:
            if item["metadata"].get("deletionTimestamp"):
                self._remove(item)
                return
            self._count += 1
            pod = _Pod(item, f"10.99.{self._count // 250}.{self._count % 250 + 1}")
            self.pods[pod.uid] = pod
            self.ran.append(pod)
            self._report(pod)
        if item["metadata"].get("deletionTimestamp"):
            if not pod.is_stopping:
                pod.is_stopping = True
                pod.process.send_signal(signal.SIGTERM)
            if pod.process.poll() is not None:
                pod.ended_at = time.monotonic()
                self._remove(item)
        elif not pod.is_ready and pod.is_warm():
            pod.is_ready = True
            self._report(pod)

    def _remove(self, item: dict[str, Any]) -> None:
        path = f"/api/v1/namespaces/{item['metadata']['namespace']}/pods/{item['metadata']['name']}"
        self._api.try_to("DELETE", path + "?gracePeriodSeconds=0")

    def _report(self, pod: _Pod) -> None:
        body = {"status": pod.status()}
        self._api.try_to("PATCH", pod.path + "/status", body, "application/strategic-merge-patch+json")

    def _end(self, pod: _Pod) -> None:
        pod.process.send_signal(signal.SIGTERM)
        pod.process.wait(30)
        pod.ended_at = pod.ended_at or time.monotonic()

    def _free_volumes(self) -> None:
        """A volume whose claim is gone may be used again, as if a provisioner had made a new one."""
        for volume in self._api("GET", "/api/v1/persistentvolumes?labelSelector=stand-in")["items"]:
            if volume["status"].get("phase") in ("Released", "Failed"):
                path = f"/api/v1/persistentvolumes/{volume['metadata']['name']}"
                self._api("PATCH", path, {"spec": {"claimRef": None}}, "application/merge-patch+json")

    def _read_endpoints(self) -> dict[tuple[str, str], list[str]]:
        found: dict[tuple[str, str], list[str]] = {}
        for slice_ in self._api("GET", "/apis/discovery.k8s.io/v1/endpointslices")["items"]:
            meta = slice_["metadata"]
            service = meta["namespace"], meta.get("labels", {}).get("kubernetes.io/service-name", "")
            for endpoint in slice_.get("endpoints") or ():
                if endpoint["conditions"].get("ready"):
                    found.setdefault(service, []).extend(endpoint["addresses"])
        return found

    def variants(self, namespace: str, service: str) -> set[str]:
        """Behind a Service, ready."""
        by_address = {pod.address: pod.variant for pod in self.ran}
        return {by_address[address] for address in self._endpoints.get((namespace, service), ())}

    def serve(self, namespace: str, service: str) -> int:
        """The port on loopback that stands in for the Service's address."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)

        def accept() -> None:
            while not self._done.is_set():
                client, _ = listener.accept()
                threading.Thread(target=relay, args=(client,), daemon=True).start()

        def relay(client: socket.socket) -> None:
            ready = self._endpoints.get((namespace, service), [])
            ports = [pod.port for pod in self.ran if pod.address in ready]
            with client:
                if not ports:
                    return
                try:
                    server = socket.create_connection(("127.0.0.1", random.choice(ports)), timeout=5)
                except OSError:
                    return
                with server:
                    _copy_both(client, server)

        threading.Thread(target=accept, daemon=True).start()
        return int(listener.getsockname()[1])

    def close(self, *, volumes: bool = True) -> None:
        self._done.set()
        self.join(30)
        for pod in self.pods.values():
            self._end(pod)
        for name in self._nodes:
            self._api.try_to("DELETE", f"/api/v1/nodes/{name}")
        if volumes:
            self._api("DELETE", "/api/v1/persistentvolumes?labelSelector=stand-in")
        self._api.close()


def _copy_both(one: socket.socket, other: socket.socket) -> None:
    while True:
        for source in select.select([one, other], [], [], 60)[0]:
            target = other if source is one else one
            try:
                data = source.recv(65536)
                target.sendall(data)
            except OSError:
                return
            if not data:
                return


def main() -> int:
    parser = argparse.ArgumentParser(description="Two Sparks for a throwaway cluster without nodes.")
    parser.add_argument("--context", required=True)
    parser.add_argument("--throwaway", action="store_true", required=True, help="it makes nodes and volumes")
    arguments = parser.parse_args()
    sparks = Sparks(Api(arguments.context))
    sparks.start()
    signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    try:
        sparks.join()
    except KeyboardInterrupt:
        sparks.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
