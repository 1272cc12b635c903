#!/usr/bin/env python3
"""Serves a metrics file, lets a real Prometheus scrape it, and asks it for what it read.

usage: load_in_prometheus.py FILE
"""
import http.server
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever $http_proxy says
QUERIES = {
    "sum(vllm:inter_token_latency_seconds_count)": 5,
    "histogram_quantile(0.5, vllm:inter_token_latency_seconds_bucket) <= bool 0.01": 1,
    "sum(vllm:request_success_total)": 1000,
    "count(loratory_setting_info)": 3,
    'loratory_latency_seconds{latency="ttft",statistic="p99"}': 0.41275,
}


def serve(text):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def ask(port, query):
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    with DIRECT.open(url, timeout=5) as reply:
        result = json.load(reply)["data"]["result"]
    return float(result[0]["value"][1]) if result else None


def wait_until_scraped(port, process):
    """Polls: a server says that it is ready only when asked."""
    for _ in range(600):
        if process.poll() is not None:
            sys.exit("prometheus ended by itself")
        try:
            if ask(port, "up") == 1:
                return
        except OSError:
            pass
        time.sleep(0.1)
    sys.exit("prometheus never read the file")


def main():
    source = serve(pathlib.Path(sys.argv[1]).read_bytes())
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder, "prometheus.yml")
        config.write_text(
            "global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: t\n"
            f"  static_configs: [{{targets: ['127.0.0.1:{source}']}}]\n")
        process = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address=127.0.0.1:{port}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until_scraped(port, process)
            wrong = {q: got for q, want in QUERIES.items() if (got := ask(port, q)) != want}
        finally:
            process.terminate()
            process.wait()
    for query, got in wrong.items():
        print(f"{query}: {got}, not {QUERIES[query]}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
