"""Where the nodes of ordered layers stand from left to right.

The method of Brandes and Köpf: four times (from above and below, from the left and the right) nodes are lined up with
the middle one of their neighbours, as far as lines do not cross, and pushed together; the result is the middle of the
four. Long edges come out straight, because the bends of one edge never give way to anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

Near = Sequence[Sequence[int]]


def columns(
    layers: list[list[int]], up: Near, down: Near, bend: Sequence[bool], apart: Callable[[int, int], float]
) -> list[float]:
    """The middle of every node; `apart` says how far the middles of two neighbours have to be from each other."""
    if not layers:
        return []
    barred = _barred(layers, up, bend)
    four: list[list[float]] = []
    for from_above in (True, False):
        for from_left in (True, False):
            rows = layers if from_above else layers[::-1]
            rows = rows if from_left else [row[::-1] for row in rows]
            gap = apart if from_left else (lambda a, b: apart(b, a))
            head = _lined_up(rows, up if from_above else down, barred, len(bend))
            found = _pushed_together(rows, head, gap)
            four.append(found if from_left else [-x for x in found])
    return _middle(four)


def _barred(layers: list[list[int]], up: Near, bend: Sequence[bool]) -> set[tuple[int, int]]:
    """Pairs that may not be lined up, because they cross the straight part of a long edge."""
    place = {node: number for layer in layers for number, node in enumerate(layer)}
    barred: set[tuple[int, int]] = set()
    for above, layer in pairwise(layers):
        left, done = 0, 0
        for number, node in enumerate(layer):
            inner = next((other for other in up[node] if bend[other]), None) if bend[node] else None
            if inner is None and number < len(layer) - 1:
                continue
            right = len(above) if inner is None else place[inner]
            for crossing in layer[done : number + 1]:
                for other in up[crossing]:
                    if not left <= place[other] <= right and not (bend[other] and bend[crossing]):
                        barred.add((other, crossing))
                        barred.add((crossing, other))
            left, done = right, number + 1
    return barred


def _lined_up(rows: list[list[int]], near: Near, barred: set[tuple[int, int]], count: int) -> list[int]:
    """For every node the head of its column."""
    place = [0] * count
    for row in rows:
        for number, node in enumerate(row):
            place[node] = number
    head = list(range(count))
    for row in rows:
        last = -1
        for node in row:
            others = sorted(near[node], key=place.__getitem__)
            for other in others[(len(others) - 1) // 2 : len(others) // 2 + 1]:
                if head[node] == node and last < place[other] and (other, node) not in barred:
                    head[node] = head[other]
                    last = place[other]
    return head


def _pushed_together(rows: list[list[int]], head: list[int], apart: Callable[[int, int], float]) -> list[float]:
    """Columns as far left as they can stand, and then as near to what is right of them as that allows."""
    right_of: dict[int, dict[int, float]] = {head[node]: {} for row in rows for node in row}
    waiting = dict.fromkeys(right_of, 0)
    for row in rows:
        for a, b in pairwise(row):
            gaps = right_of[head[a]]
            if head[b] not in gaps:
                waiting[head[b]] += 1
            gaps[head[b]] = max(gaps.get(head[b], 0.0), apart(a, b))
    order = [column for column, number in waiting.items() if not number]
    at = dict.fromkeys(right_of, 0.0)
    for column in order:  # grows while it is walked
        for other, gap in right_of[column].items():
            at[other] = max(at[other], at[column] + gap)
            waiting[other] -= 1
            if not waiting[other]:
                order.append(other)
    for column in reversed(order):
        if gaps := right_of[column]:
            at[column] = max(at[column], min(at[other] - gap for other, gap in gaps.items()))
    return [at.get(head[node], 0.0) for node in range(len(head))]


def _middle(four: list[list[float]]) -> list[float]:
    """The four on top of each other (at the edges of the narrowest), and of each node the mean of the middle two."""
    narrow = min(four, key=lambda xs: max(xs) - min(xs))
    for number, xs in enumerate(four):
        end = min if number % 2 == 0 else max
        shift = end(narrow) - end(xs)
        four[number] = [x + shift for x in xs]
    return [(sum(sorted(xs)[1:3])) / 2 for xs in zip(*four, strict=True)]
