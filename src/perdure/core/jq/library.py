"""Functions that are written in the language itself, each compiled when it is first used.

Names with an underscore in front are those of `natives` that only the library may call.
"""

from __future__ import annotations

from functools import cache

from perdure.core.jq import tree
from perdure.core.jq.code import Build, Filter, Function, Scope
from perdure.core.jq.parser import parse

_TEXT = """
def error(message): message | error;
def map_values(f): .[] |= f;
def with_entries(f): to_entries | map(f) | from_entries;
def first: .[0];
def last: .[-1];
def nth($n): .[$n];
def nth($n; f): if $n < 0 then error("nth doesn't support negative indices") else first(skip($n; f)) end;
def range($end): range(0; $end);
def range($start; $end; $by):
  if $by > 0 then $start | while(. < $end; . + $by)
  elif $by < 0 then $start | while(. > $end; . + $by)
  else empty end;
def index($part): indices($part) | .[0];
def rindex($part): indices($part) | .[-1:][0];
def paths: path(..) | select(length > 0);
def paths(f): path(.. | select(f)) | select(length > 0);
def leaf_paths: paths(scalars);
def pick(f): . as $all | reduce path(f) as $path (null; setpath($path; $all | getpath($path)));
def finites: select(isfinite);
def normals: select(isnormal);
def abs: if . < 0 then - . else . end;
def toarray: if type == "array" then . else [.] end;
def in(container): . as $key | container | has($key);
def inside(whole): . as $part | whole | contains($part);
def combinations: if length == 0 then [] else .[0][] as $first | (.[1:] | combinations) as $rest | [$first] + $rest end;
def combinations(n): . as $all | [range(n) | $all] | combinations;
def ltrimstr($text): if startswith($text) then .[$text | length:] end;
def rtrimstr($text): if endswith($text) then .[:length - ($text | length)] end;
def trimstr($text): ltrimstr($text) | rtrimstr($text);
def match(re; flags): _match(re; flags)[];
def match($re): _match($re)[];
def capture(re; flags): _capture(re; flags)[];
def capture($re): _capture($re)[];
def scan($re; $flags): _scan($re; $flags)[];
def scan($re): _scan($re; null)[];
def splits($re; $flags): _splits($re; $flags)[];
def splits($re): _splits($re; null)[];
def split($re; $flags): _splits($re; $flags);
def sub($re; text): sub($re; text; "");
def gsub($re; text): sub($re; text; "g");
def gsub($re; text; flags): sub($re; text; flags + "g");
def fromdateiso8601: strptime("%Y-%m-%dT%H:%M:%SZ") | mktime;
def todateiso8601: strftime("%Y-%m-%dT%H:%M:%SZ");
def fromdate: fromdateiso8601;
def todate: todateiso8601;
def date: todate;
def INDEX(stream; key): reduce stream as $row ({}; .[$row | key | tostring] = $row);
def INDEX(key): INDEX(.[]; key);
def IN(stream): any(stream == .; .);
def IN(source; stream): any(source == stream; .);
def JOIN($index; key): [.[] | [., $index[key]]];
def JOIN($index; stream; key): stream | [., $index[key]];
def JOIN($index; stream; key; join): stream | [., $index[key]] | join;
def tostream:
  path(def leaves: (.[]? | leaves), .; leaves) as $path
  | getpath($path)
  | reduce path(.[]?) as $inner ([$path, .]; [$path + $inner]);
def fromstream(stream):
  {value: null, done: false} as $start
  | foreach stream as $event ($start;
      if .done then $start else . end
      | if $event | length == 2
        then setpath(["done"]; $event[0] | length == 0) | setpath(["value"] + $event[0]; $event[1])
        else setpath(["done"]; $event[0] | length == 1) end;
      if .done then .value else empty end);
def truncate_stream(stream):
  . as $depth | null | stream | . as $event
  | if (.[0] | length) > $depth then setpath([0]; $event[0][$depth:]) else empty end;
.
"""


@cache
def _definitions() -> dict[tuple[str, int], tree.Define]:
    found: dict[tuple[str, int], tree.Define] = {}
    for text in _TEXT.strip().rstrip(".").split(";\ndef "):
        text = text.strip().rstrip(";").removeprefix("def ")
        if text:
            node = parse(f"def {text}; .")
            assert isinstance(node, tree.Define)
            found[node.name, len(node.params)] = node
    return found


_FUNCTIONS: dict[tuple[str, int], Function] = {}


def names() -> list[tuple[str, int]]:
    return list(_definitions())


def find(name: str, arity: int, build: Build) -> Function | None:
    function = _FUNCTIONS.get((name, arity))
    if function is not None:
        return function
    node = _definitions().get((name, arity))
    if node is None:
        return None
    scope = Scope(node.name, build, inner=True)
    body = Filter(node.body, scope)
    # It must be known before it is built: it may call itself.
    function = _FUNCTIONS[name, arity] = Function(body, None)
    body.scope = scope.params(node.params)
    return function
