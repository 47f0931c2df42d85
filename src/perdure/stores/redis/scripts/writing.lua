-- What starts, sends and commits have in common. Whatever is refused is refused before anything of it is written.

-- Rows go to the end of the log. Given is where the first and the last of them are among some values; `ids` are the
-- messages among them with their versions, `fence` is the newest of them.
local function append(x, fence, rows, ids, landmark, values)
  tick()
  for n = rows[1], rows[2], 1000 do
    call('RPUSH', P .. 'l:' .. x.key, unpack(values or ARGV, n, math.min(n + 999, rows[2])))
  end
  local count = rows[2] - rows[1] + 1
  for _, one in ipairs(ids) do
    call('HSET', P .. 'f:' .. x.key, one[1], text(one[2]))
  end
  call('HINCRBY', P .. 'rows:' .. x.tenant, x.w, text(count))
  x.n = x.n + count
  x.lm = landmark or x.lm
  x.fe = math.max(x.fe or 0, fence)
end

-- What was written before is told to whoever repeats a call, and is then as good as a write of this call: so something is
-- written, for a server that waits for its replicas waits for what the same connection has written, and for no more.
local function again()
  call('SET', P .. 'clock', text(now))
end

local function start(one, due)
  local key, workflow, definition, served, queue, status, sha, rows, ids, landmark, base, parent, parent_ref, lane, state,
    result, fence, topics, labels, shown = unpack(one, 1, 20)
  local there = call('HGET', P .. 'x:' .. key, 'sha')
  if there then
    again()
    return there == sha and 'same' or 'conflict'
  end
  local x = {key = key, tenant = tenant_of(key), n = 0, old = {n = 0}, st = status, q = queue, d = definition, s = served,
    w = workflow, p = parent, pr = parent_ref, at = now, b = base}
  local more = {'sha', sha, 'ch', text(now)}
  for field, place in pairs({state = state, result = result, labels = shown}) do
    more[#more + 1] = field
    more[#more + 1] = ARGV[place]
  end
  append(x, fence, rows, ids, landmark)
  if not ENDED[status] then
    -- The first token is the time, so it exceeds every fence that a fork or an import brings along.
    x.tok, x.due, x.lap, x.hints = math.max(now, fence), due, 0, 0
    if lane then
      local newest = call('ZRANGE', P .. 'lane:' .. lane, -1, -1, 'WITHSCORES')
      call('ZADD', P .. 'lane:' .. lane, text((tonumber(newest[2]) or 0) + 1), key)
      x.lane = lane
    end
    for _, topic in ipairs(topics) do
      call('ZADD', P .. 'topic:' .. topic, 0, key)
    end
    x.top = topics[1] and cmsgpack.pack(topics)
  end
  save(x, more)
  call('ZADD', P .. 'tenants', 0, x.tenant)
  call('ZADD', by(x, ''), text(now), key)
  call('ZADD', by(x, 'w:' .. workflow), text(now), key)
  if parent then
    call('ZADD', by(x, 'p:' .. parent), text(now), key)
  end
  for _, label in ipairs(labels) do
    call('ZADD', P .. 'by:' .. label, text(now), key)
  end
  return 'created'
end

local function send(one, due)
  local key, id, sha, letter = unpack(one, 1, 4)
  local x = load(key)
  if not x then
    return {'missing'}
  end
  local holder = x.tok and live_holder(x) or false
  local waiting = call('HGET', P .. 'm:' .. key, id)
  if waiting then
    again()
    local length, from = string.match(waiting, '^%d+ (%d+) ()')
    local same = string.sub(waiting, from, from + length - 1) == sha
    return {same and 'duplicate' or 'conflict', x.q, holder, 0}
  end
  local version = call('HGET', P .. 'f:' .. key, id)
  if version then
    again()
    return {'duplicate', x.q, holder, tonumber(version)}
  end
  if not x.tok then
    return {'ended', x.q, false, 0}
  end
  x.seq = (x.seq or 0) + 1
  x.mdue = math.min(x.mdue or due, due)
  call('HSET', P .. 'm:' .. key, id, text(x.seq) .. ' ' .. ARGV[letter])
  save(x)
  return {'accepted', x.q, holder, 0}
end
