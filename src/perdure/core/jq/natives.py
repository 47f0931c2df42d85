"""Functions from values to a value, in Python: `(meter, input, *arguments)`.

Each charges the meter for what it looks through and for what it makes, before it does so.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from perdure.core.jq import dates, formats, regex
from perdure.core.jq.access import delete_paths, index, indices as array_indices, place_of, set_path
from perdure.core.jq.arithmetic import number, split, to_float
from perdure.core.jq.limits import NESTED, Meter, Raised, too_nested
from perdure.core.jq.maths import MATHS
from perdure.core.jq.order import compare, contains
from perdure.core.jq.parser import number as parse_number
from perdure.core.jq.text import bad, bad_pair, brief, dump, is_nan, kind, measure, number_text, tostring

_NUMBERS = frozenset({int, float})
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_SPACES = " \t\n\r\v\f\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


def _length(meter: Meter, value: Any) -> Any:
    if type(value) in (str, list, dict):
        return len(value)
    if value is None:
        return 0
    if type(value) in _NUMBERS:
        return abs(value)
    raise bad(meter, value, "has no length")


def _not(meter: Meter, value: Any) -> bool:
    return value is None or value is False


def _keys(meter: Meter, value: Any) -> list[Any]:
    found = _keys_unsorted(meter, value)
    return sorted(found) if type(value) is dict else found


def _keys_unsorted(meter: Meter, value: Any) -> list[Any]:
    if type(value) not in (dict, list):
        raise bad(meter, value, "has no keys")
    meter.make(len(value))
    meter.work(len(value) >> 2)
    return list(value) if type(value) is dict else list(range(len(value)))


def _has(meter: Meter, value: Any, key: Any) -> bool:
    if value is None:
        return False
    if type(value) is dict and type(key) is str:
        return key in value
    if type(value) is list and type(key) in _NUMBERS:
        place = place_of(key)
        return place is not None and 0 <= place < len(value)
    raise Raised(f"Cannot check whether {kind(value)} has a {kind(key)} key")


def _contains(meter: Meter, value: Any, part: Any) -> bool:
    if kind(value) != kind(part):
        raise bad_pair(meter, value, part, "cannot have their containment checked")
    return contains(meter, value, part)


def _to_entries(meter: Meter, value: Any) -> list[Any]:
    keys = _keys_unsorted(meter, value)
    meter.make(3 * len(keys))
    meter.work(len(keys))
    return [{"key": key, "value": value[key]} for key in keys]


def _from_entries(meter: Meter, value: Any) -> dict[str, Any]:
    if type(value) not in (list, dict):
        raise Raised(f"Cannot iterate over {kind(value)} ({brief(meter, value)})")
    entries = list(value.values()) if type(value) is dict else value
    meter.make(len(entries))
    meter.work(2 * len(entries))
    made: dict[str, Any] = {}
    for entry in entries:
        key = None
        for name in ("key", "Key", "name", "Name"):
            key = index(meter, entry, name)
            if key is not None and key is not False:
                break
        else:
            key = None if key is False else key
        if type(key) is not str:
            raise Raised(f"Cannot use {kind(key)} ({brief(meter, key)}) as object key")
        made[key] = entry["value"] if "value" in entry else entry.get("Value")
    return made


def _reverse(meter: Meter, value: Any) -> Any:
    if type(value) in (list, str) or value is None:
        meter.make(len(value or ()))
        meter.work(len(value or ()) >> 4)
        if type(value) is str and value:
            raise Raised("Cannot index string with number (0)")
        return (value or [])[::-1]
    if value == {} or (type(value) in _NUMBERS and value == 0):
        return []
    if type(value) is dict:
        raise Raised(f"Cannot index object with number ({len(value) - 1})")
    if type(value) in _NUMBERS:
        raise Raised(f"Cannot index number with number ({number_text(abs(value) - 1)})")
    raise bad(meter, value, "has no length")


def _flatten(meter: Meter, value: Any, depth: Any = math.inf) -> list[Any]:
    if compare(meter, depth, 0) < 0:
        raise Raised("flatten depth must not be negative")
    if type(value) not in (list, dict):
        raise Raised(f"Cannot iterate over {kind(value)} ({brief(meter, value)})")
    flat: list[Any] = []
    _flatten_into(meter, list(value.values()) if type(value) is dict else value, depth, flat, 0)
    return flat


def _flatten_into(meter: Meter, items: list[Any], depth: Any, flat: list[Any], level: int) -> None:
    if level > NESTED:
        raise too_nested()
    meter.work(len(items))
    meter.make(len(items))
    for item in items:
        if type(item) is list and type(depth) not in _NUMBERS:
            raise bad_pair(meter, depth, 1, "cannot be subtracted")
        if type(item) is list and level < depth:
            _flatten_into(meter, item, depth, flat, level + 1)
        else:
            flat.append(item)


def _join(meter: Meter, value: Any, separator: Any) -> str:
    if type(value) not in (list, dict):
        raise Raised(f"Cannot iterate over {kind(value)} ({brief(meter, value)})")
    items = list(value.values()) if type(value) is dict else value
    meter.work(len(items))
    texts = []
    for item in items:
        if type(item) is str or item is None or type(item) in _NUMBERS or type(item) is bool:
            texts.append("" if item is None else tostring(meter, item))
        else:
            before = "".join(text + str(separator) for text in texts[:40])
            raise bad_pair(meter, before, item, "cannot be added")
    if len(texts) > 1 and type(separator) is not str and separator is not None:
        raise bad_pair(meter, texts[0], separator, "cannot be added")
    joint = separator if type(separator) is str else ""
    meter.make(sum(map(len, texts)) + len(joint) * len(texts))
    return joint.join(texts)


def _indices(meter: Meter, value: Any, part: Any) -> Any:
    if type(value) is list:
        return array_indices(meter, value, part if type(part) is list else [part])
    if type(value) is str and type(part) is str:
        meter.work(len(value) >> 4)
        found: list[int] = []
        at = value.find(part) if part else -1
        while at >= 0:
            meter.work(1)
            found.append(at)
            at = value.find(part, at + 1)
        meter.make(len(found))
        return found
    return index(meter, value, part)


def _startswith(meter: Meter, value: Any, text: Any) -> bool:
    if type(value) is not str or type(text) is not str:
        raise Raised("startswith() requires string inputs")
    return value.startswith(text)


def _endswith(meter: Meter, value: Any, text: Any) -> bool:
    if type(value) is not str or type(text) is not str:
        raise Raised("endswith() requires string inputs")
    return value.endswith(text)


def _trim(left: bool, right: bool) -> Callable[[Meter, Any], str]:
    def trim(meter: Meter, value: Any) -> str:
        if type(value) is not str:
            raise Raised("trim input must be a string")
        meter.make(len(value))
        trimmed: str = value.lstrip(_SPACES) if left else value
        return trimmed.rstrip(_SPACES) if right else trimmed

    return trim


def _split(meter: Meter, value: Any, separator: Any) -> list[str]:
    if type(value) is not str or type(separator) is not str:
        raise Raised("split input and separator must be strings")
    return split(meter, value, separator)


def _cased(first: int, shift: int) -> Callable[[Meter, Any], str]:
    """Letters A to Z alone, as the name says."""
    table = {code: code + shift for code in range(first, first + 26)}

    def change(meter: Meter, value: Any) -> str:
        if type(value) is not str:
            raise Raised("explode input must be a string")
        meter.make(len(value))
        meter.work(len(value) >> 6)
        return value.translate(table)

    return change


def _explode(meter: Meter, value: Any) -> list[int]:
    if type(value) is not str:
        raise Raised("explode input must be a string")
    meter.make(len(value))
    meter.work(len(value) >> 3)
    return list(map(ord, value))


def _implode(meter: Meter, value: Any) -> str:
    if type(value) is not list:
        raise Raised("implode input must be an array")
    meter.make(len(value))
    meter.work(len(value) >> 2)
    chars = []
    for code in value:
        if type(code) not in _NUMBERS or is_nan(code):
            raise bad(meter, code, "can't be imploded, unicode codepoint needs to be numeric")
        point = int(max(-1, min(code, 0x110000)))
        chars.append(chr(point) if 0 <= point <= 0x10FFFF and not 0xD800 <= point <= 0xDFFF else "\ufffd")
    return "".join(chars)


def _ascii(meter: Meter, value: Any) -> str:
    return _implode(meter, [value])


def _tonumber(meter: Meter, value: Any) -> Any:
    if type(value) in _NUMBERS:
        return value
    if type(value) is str and len(value) <= 400:
        if _NUMBER.fullmatch(value):
            sign = -1 if value[0] == "-" else 1
            return sign * parse_number(value.lstrip("+-"))
        if value.lower() in ("nan", "-nan"):
            return number(meter, math.nan)
        if value.lower().lstrip("+-") in ("infinity", "inf"):
            return number(meter, -math.inf if value[0] == "-" else math.inf)
    raise bad(meter, value, "cannot be parsed as a number")


def _toboolean(meter: Meter, value: Any) -> bool:
    if type(value) is bool:
        return value
    if type(value) is str and value in ("true", "false"):
        return value == "true"
    raise bad(meter, value, "cannot be parsed as a boolean")


def _fromjson(meter: Meter, value: Any) -> Any:
    if type(value) is not str:
        raise bad(meter, value, "only strings can be parsed")
    meter.make(len(value))
    meter.work(len(value) >> 3)

    def constant(name: str) -> float:
        return float(number(meter, float(name.replace("Infinity", "inf"))))

    text = value.strip(" \t\r\n")
    if text in ("nan", "-nan", "-NaN"):
        return number(meter, math.nan)
    try:
        found = json.loads(text, parse_constant=constant, parse_int=_integer, parse_float=parse_signed)
    except RecursionError:
        raise too_nested() from None
    except ValueError:
        # The words of Python's parser are not the same in all its versions, and an expression may catch and keep them.
        raise Raised(f"Invalid JSON text (while parsing '{value[:100]}')") from None
    measure(found)
    return found


def _integer(text: str) -> Any:
    return int(text) if len(text) < 300 else parse_signed(text)


def parse_signed(text: str) -> Any:
    found = parse_number(text.lstrip("-"))
    return -found if text[0] == "-" else found


def _utf8bytelength(meter: Meter, value: Any) -> int:
    if type(value) is not str:
        raise bad(meter, value, "only strings have UTF-8 byte length")
    meter.make(len(value))
    return len(value.encode(errors="replace"))


def _checked(test: Callable[[float], bool]) -> Callable[[Meter, Any], bool]:
    def check(meter: Meter, value: Any) -> bool:
        return type(value) in _NUMBERS and test(to_float(value))

    return check


def _bsearch(meter: Meter, value: Any, wanted: Any) -> int:
    if type(value) is not list:
        raise bad(meter, value, "cannot be searched from")
    low, high = 0, len(value)
    while low < high:
        middle = (low + high) // 2
        result = compare(meter, wanted, value[middle])
        if result == 0:
            return middle
        if result < 0:
            high = middle
        else:
            low = middle + 1
    return -1 - low


def _transpose(meter: Meter, value: Any) -> list[Any]:
    if type(value) not in (list, dict):
        raise Raised(f"Cannot iterate over {kind(value)} ({brief(meter, value)})")
    rows = list(value.values()) if type(value) is dict else value
    # Of a number the length is its amount, which need not be whole.
    width = math.ceil(min(max((_length(meter, row) for row in rows), default=0), 2**31))
    meter.make(width * (len(rows) + 1))
    meter.work(width * (len(rows) + 1))
    return [[index(meter, row, place) for row in rows] for place in range(width)]


def _tojson(meter: Meter, value: Any) -> str:
    return dump(meter, value)


NATIVES: dict[tuple[str, int], Callable[..., Any]] = {
    **MATHS,
    ("not", 0): _not,
    ("type", 0): lambda meter, value: kind(value),
    ("length", 0): _length,
    ("utf8bytelength", 0): _utf8bytelength,
    ("keys", 0): _keys,
    ("keys_unsorted", 0): _keys_unsorted,
    ("has", 1): _has,
    ("contains", 1): _contains,
    ("to_entries", 0): _to_entries,
    ("from_entries", 0): _from_entries,
    ("reverse", 0): _reverse,
    ("flatten", 0): _flatten,
    ("flatten", 1): _flatten,
    ("join", 1): _join,
    ("indices", 1): _indices,
    ("startswith", 1): _startswith,
    ("endswith", 1): _endswith,
    ("trim", 0): _trim(True, True),
    ("ltrim", 0): _trim(True, False),
    ("rtrim", 0): _trim(False, True),
    ("split", 1): _split,
    ("ascii_downcase", 0): _cased(65, 32),
    ("ascii_upcase", 0): _cased(97, -32),
    ("explode", 0): _explode,
    ("implode", 0): _implode,
    ("ascii", 0): _ascii,
    ("tojson", 0): _tojson,
    ("fromjson", 0): _fromjson,
    ("tostring", 0): tostring,
    ("tonumber", 0): _tonumber,
    ("toboolean", 0): _toboolean,
    ("format", 1): formats.write,
    ("setpath", 2): set_path,
    ("delpaths", 1): delete_paths,
    ("bsearch", 1): _bsearch,
    ("transpose", 0): _transpose,
    ("infinite", 0): lambda meter, value: number(meter, math.inf),
    ("nan", 0): lambda meter, value: number(meter, math.nan),
    ("isinfinite", 0): _checked(math.isinf),
    ("isnan", 0): _checked(math.isnan),
    ("isnormal", 0): _checked(lambda value: math.isfinite(value) and abs(value) >= 2.2250738585072014e-308),
    ("isfinite", 0): lambda meter, value: type(value) in _NUMBERS and not math.isinf(to_float(value)),
    ("have_decnum", 0): lambda meter, value: True,
    ("have_literal_numbers", 0): lambda meter, value: True,
    ("gmtime", 0): dates.gmtime,
    ("mktime", 0): dates.mktime,
    ("strftime", 1): dates.strftime,
    ("strptime", 1): dates.strptime,
    ("test", 1): regex.matches,
    ("test", 2): regex.matches,
    ("_match", 1): regex.find,
    ("_match", 2): regex.find,
    ("_capture", 1): regex.capture,
    ("_capture", 2): regex.capture,
    ("_scan", 2): regex.scan,
    ("_splits", 2): regex.splits,
}
