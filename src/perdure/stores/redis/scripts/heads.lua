-- Heads, newest first. indexes that have all of them; the newest start and the key before which to begin, the earliest
-- start; status, whether held, workflow, parent, whether also inner ones, labels; how many to find and to look at
local indexes, newest, before, oldest, status, held, workflow, parent, inner, labels, limit, scan = unpack(given, 1, 12)

local index, least
for _, name in ipairs(indexes) do
  local size = call('ZCARD', P .. 'by:' .. name)
  if not least or size < least then
    index, least = P .. 'by:' .. name, size
  end
end

-- In the order of a sorted set, which is that of bytes; Lua compares as the locale of the server says.
local function not_before(one, other)
  for n = 1, math.min(#one, #other) do
    local a, b = string.byte(one, n), string.byte(other, n)
    if a ~= b then
      return a > b
    end
  end
  return #one >= #other
end

local function fits(key)
  local st, hold, due, w, p = unpack(call('HMGET', P .. 'x:' .. key, 'st', 'hold', 'due', 'w', 'p'))
  local running = hold and due and tonumber(due) > now or false
  if (status and st ~= status) or (held ~= nil and running ~= held) or (workflow and w ~= workflow)
    or (parent and p ~= parent) or (not inner and string.find(w, ':', 1, true)) then
    return false
  end
  for _, label in ipairs(labels) do
    if not call('ZSCORE', P .. 'by:' .. label, key) then
      return false
    end
  end
  return true
end

local heads, at, looked, stopped = {}, 0, 0, false
local high, low = newest and text(newest) or '+inf', oldest and text(oldest) or '-inf'
while not stopped do
  local some = call('ZREVRANGEBYSCORE', index, high, low, 'WITHSCORES', 'LIMIT', text(at), 200)
  for n = 1, #some, 2 do
    local key, start = some[n], some[n + 1]
    -- Those of the same start as the one before which to begin, and behind it in the order of keys, were seen already.
    if not (before and tonumber(start) == newest and not_before(key, before)) then
      looked = looked + 1
      if fits(key) then
        heads[#heads + 1] = {key, call('HGETALL', P .. 'x:' .. key), call('LLEN', P .. 'l:' .. key),
          call('HLEN', P .. 'm:' .. key)}
      end
      if #heads == limit or looked == scan then
        stopped = {start, key}
        break
      end
    end
  end
  if #some < 400 then
    break
  end
  at = at + 200
end
return {text(now), stopped, heads}
