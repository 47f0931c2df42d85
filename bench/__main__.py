"""`make bench`: the embedded engine, then the HTTP API, then fleets on PostgreSQL and on PostgreSQL with Redis.

usage: python -m bench [--quick] [--only embedded|machines|http|postgres|cluster] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sqlite3
from pathlib import Path
from typing import Any

from bench import embedded, fleet, fleet_parts, http, machines, report
from bench.programs import MEASURED
from bench.report import console
from bench.servers import Servers


def measure_embedded(scale: embedded.Scale) -> dict[str, Any]:
    console.print(f"\nSQLite {sqlite3.sqlite_version}, synchronous=FULL")
    figures: dict[str, Any] = {"sqlite": sqlite3.sqlite_version, "throughput": {}}
    with console.status("…") as status:
        for name in MEASURED:
            status.update(f"{name}, embedded")
            figures["throughput"][name] = embedded.throughput(name, scale) | embedded.latency(name, scale)
        report.embedded(figures["throughput"])
        status.update("replay")
        figures["replay"] = embedded.replay(scale)
        report.replay(figures["replay"])
        status.update(f"{scale.waiting:,} waiting executions")
        figures["waiting"] = embedded.waiting(scale)
        report.waiting(figures["waiting"])
    return figures


def measure_machines(scale: machines.Scale) -> dict[str, Any]:
    with console.status("…") as status:
        status.update("state machines, beside code")
        figures: dict[str, Any] = {"code": machines.against_code(scale)}
        status.update(f"a machine with {scale.long:,} events")
        figures["log"] = machines.long_log(scale)
    report.machines(figures)
    return figures


def measure_http(scale: http.Scale) -> dict[str, Any]:
    with console.status("the HTTP API over PostgreSQL"), Servers() as servers:
        figures = http.measure(servers, scale)
    report.http(figures)
    return figures


def measure_fleet(profiles: list[str], scale: fleet.Scale) -> dict[str, Any]:
    with console.status("starting PostgreSQL and Valkey") as status, Servers() as servers:
        facts = servers.facts
        console.print(
            f"\nPostgreSQL {facts['server_version']}, fsync {facts['fsync']}, shared_buffers {facts['shared_buffers']},"
            f" Valkey {facts['valkey']}"
        )
        figures: dict[str, Any] = {"servers": facts}
        figures["throughput"] = fleet_parts.throughput(servers, profiles, scale, status.update)
        report.throughput(figures["throughput"], scale.at_once)
        figures["latency"] = fleet_parts.latency(servers, profiles, scale, status.update)
        report.latency(figures["latency"])
        if "cluster" in profiles:
            figures["growth"] = fleet_parts.growth(servers, scale, status.update)
            report.growth(figures["growth"])
        if "postgres" in profiles:
            figures["stored"] = fleet_parts.stored(servers, scale, status.update)
            report.compared("fleet: W5 on postgres, finished executions in the store", figures["stored"])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench")
    parser.add_argument("--quick", action="store_true", help="fewer executions, one round")
    parser.add_argument(
        "--only", choices=["embedded", "machines", "http", *fleet.PROFILES], help="leave the other parts out"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures here too")
    chosen = parser.parse_args()
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "system": platform.platform()}
    figures: dict[str, Any] = {"machine": machine}
    console.print(f"Python {machine['python']}, {machine['cores']} cores, {machine['system']}")
    if chosen.only in (None, "embedded"):
        figures["embedded"] = measure_embedded(embedded.QUICK if chosen.quick else embedded.FULL)
    if chosen.only in (None, "machines"):
        figures["machines"] = measure_machines(machines.QUICK if chosen.quick else machines.FULL)
    if chosen.only in (None, "http"):
        figures["http"] = measure_http(http.QUICK if chosen.quick else http.FULL)
    if chosen.only not in ("embedded", "machines", "http"):
        profiles = [chosen.only] if chosen.only else list(fleet.PROFILES)
        figures["fleet"] = measure_fleet(profiles, fleet.QUICK if chosen.quick else fleet.FULL)
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
