"""The figures as tables, one for each part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

console = Console(width=130)
_WHO = ("client", "worker", "postgres", "redis")


def embedded(found: Mapping[str, Any]) -> None:
    titles = ("engine", "by hand", "share", "rows alone", "share", "p50", "p99", "one at a time: p50", "p99")
    table = _table("embedded: executions a second, 1,000 in flight, one process", "", *titles)
    for name, one in found.items():
        times = (_ms(one[p]) for p in ("p50", "p99", "alone_p50", "alone_p99"))
        bare = f"{one['bare']:,.0f}", f"{one['share']:.2f}", f"{one['rows']:,.0f}", f"{one['share_of_rows']:.2f}"
        table.add_row(name, f"{one['rate']:,.0f}", *bare, *times)
    console.print(table)


def replay(found: Mapping[str, Any]) -> None:
    console.print(f"replay of {found['events']:,} events: {found['ms']:.0f} ms")


def waiting(found: Mapping[str, Any]) -> None:
    console.print(
        f"{found['count']:,} waiting executions: {found['megabytes']:.0f} MB more in memory (SQLite's page cache takes"
        f" up to 64 of them, once), {found['idle_cpu'] * 100:.2f} % of a core while idle"
    )


def machines(found: Mapping[str, Any]) -> None:
    code, log = found["code"], found["log"]
    console.print(
        f"five events with an action each, executions a second: as a machine {code['machine']:,.0f}, in code"
        f" {code['code']:,.0f}: {code['ratio']:.2f}"
    )
    console.print(
        f"the next event of a machine that nobody has in memory: {log['long']:.2f} ms after {log['events']:,} events,"
        f" {log['short']:.2f} ms after few: {log['ratio']:.2f}"
    )


def http(found: Mapping[str, Any]) -> None:
    console.print(
        f"HTTP: {found['single']:,.0f} events a second in requests of one (p50 {_ms(found['p50'])}, p99"
        f" {_ms(found['p99'])}; {found['api_us']:.0f} µs CPU of the API and {found['postgres_us']:.0f} of PostgreSQL"
        f" each), {found['batched']:,.0f} in requests of {found['batch']} ({found['batched_us']:.0f} µs)"
    )
    console.print(
        f"HTTP at half that load, {found['half']:,.0f} a second: p50 {_ms(found['half_p50'])}, p99"
        f" {_ms(found['half_p99'])}"
    )


def throughput(found: Mapping[str, Any], at_once: int) -> None:
    costs = tuple(f"µs CPU: {who}" if who == _WHO[0] else who for who in _WHO)
    title = f"fleet: executions a second, {at_once:,} in flight, with one worker process and two"
    table = _table(title, "", "", "a second", "share", "p50", "p99", *costs)
    for program, fleets in found.items():
        for name, one in fleets.items():
            share = "" if name == "by hand" else f"{one['share']:.2f}"
            table.add_row(program, name, *_rate(one, share), *_costs(one))
    console.print(table)


def latency(found: Mapping[str, Any]) -> None:
    table = _table(
        "fleet: from start to result at 10 executions a second, and how late timers fire",
        "",
        "",
        "measured",
        "p50",
        "p99",
    )
    for profile, parts in found.items():
        for name, one in parts.items():
            table.add_row(name, profile, f"{one['count']:,}", _ms(one["p50"]), _ms(one["p99"]))
    console.print(table)


def growth(found: Mapping[str, Any] | None) -> None:
    if found is None:
        console.print("\nhow a fleet grows is not measured: that takes the right to make control groups")
        return
    table = _table(
        "fleet: on cluster, each worker with a tenth of a core and 1,000 in flight", "", "workers", "a second", "ratio"
    )
    for program, sizes in found.items():
        for count, one in sizes.items():
            table.add_row(program, count, f"{one['rate']:,.0f}", f"{one['ratio']:.2f}")
    console.print(table)


def compared(title: str, found: Mapping[str, Any]) -> None:
    """Two fleets beside each other: the second against the first."""
    costs = tuple(f"µs CPU: {who}" if who == _WHO[0] else who for who in _WHO)
    table = _table(title, "", "a second", "ratio", "p50", "p99", *costs)
    for number, (name, one) in enumerate(found["figures"].items()):
        table.add_row(name, *_rate(one, f"{found['ratio']:.2f}" if number else ""), *_costs(one))
    console.print(table)


def _table(title: str, *columns: str) -> Table:
    """A table below its title, which may be wider."""
    console.print(f"\n{title}", style="italic")
    table = Table(box=None)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _rate(one: Mapping[str, Any], beside: str) -> tuple[str, ...]:
    return f"{one['rate']:,.0f}", beside, _ms(one["p50"]), _ms(one["p99"])


def _costs(one: Mapping[str, Any]) -> list[str]:
    return ["unknown" if one["cpu"][who] is None else f"{one['cpu'][who]:,.0f}" for who in _WHO]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"
