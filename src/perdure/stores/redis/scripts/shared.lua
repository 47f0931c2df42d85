-- What every script begins with: where the keys are, what time it is, and an execution as a table.
--
-- Rules kept here: a layout that is not the one this code was written for stops a script before it does anything; the
-- time is the server's and never runs backwards; an execution is loaded, changed and saved, and saving keeps every index
-- true by comparing what was with what is.
--
-- KEYS[1]  what all keys begin with; it has the hash tag, so they are on one node
-- ARGV     what is asked for (msgpack), the number of the layout, the time by a test's clock (else empty); then bytes,
--          which are kept as they are: where they are is said in what is asked for
--
--   x:KEY      hash    an execution: what was given, what people see, and while it is open its hold and due times
--   l:KEY      list    its log: the row of version n is the nth
--   f:KEY      hash    the messages in its log, by id, with their versions
--   m:KEY      hash    its mailbox, by id
--   due:…      zset    what of a tenant, a queue and a definition is due when
--   turns:…    zset    the tenants of a queue and a definition, and when the first of each is due
--   by:…       zset    executions by start: of a tenant, a workflow, a status, a parent, a label, and those held
--   lane:…     zset    the open executions of a lane, oldest first
--   topic:…    zset    the open executions of a topic, by key
--   begun:…    set     the open executions of a tenant that have begun
--   rows:…     hash    how many rows the logs of a workflow have together
--   pairs, tenants, turn, clock, layout

local P, given, call = KEYS[1], cmsgpack.unpack(ARGV[1]), redis.call

local function text(number)
  return string.format('%.0f', number)
end

local stored = call('MGET', P .. 'layout', P .. 'clock')
if stored[1] ~= ARGV[2] then
  return redis.error_reply('LAYOUT ' .. (stored[1] or 'none'))
end
local last, now = tonumber(stored[2] or 0), tonumber(ARGV[3])
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
now = math.max(now, last)

-- Whoever writes also writes down the time, which is then the least that it is for everybody.
local function tick()
  if now > last then
    call('SET', P .. 'clock', text(now))
    last = now
  end
end

local ENDED = {completed = true, failed = true, cancelled = true}
-- st status, q queue, d definition, s what has to be served, w workflow, sha, p and pr parent, at start, b base, ch change,
-- lm whether it got on since it was last taken over, fe the newest fence in its log, wt whether it waits; while it is open: tok token, hold holder,
-- due, mdue when its mail is due, lap lapses, hints, lane, top topics, seq of the last mail.
local FIELDS = {'st', 'q', 'd', 's', 'w', 'p', 'pr', 'at', 'b', 'lm', 'fe', 'wt', 'tok', 'hold', 'due', 'mdue', 'lap', 'hints',
  'lane', 'top', 'seq'}
local NUMBERS = {at = true, b = true, fe = true, tok = true, due = true, mdue = true, lap = true, hints = true, seq = true}

local function tenant_of(key)
  return string.match(key, '^([^/]*)')
end

local function load(key)
  local found = call('HMGET', P .. 'x:' .. key, unpack(FIELDS))
  if not found[1] then
    return nil
  end
  local x, old = {key = key, tenant = tenant_of(key)}, {}
  for number, field in ipairs(FIELDS) do
    local value = found[number] or nil
    if value and NUMBERS[field] then
      value = tonumber(value)
    end
    x[field], old[field] = value, value
  end
  x.n = call('LLEN', P .. 'l:' .. key)
  x.old, old.n = old, x.n
  return x
end

local function live_holder(x)
  return x.hold and x.due > now and x.hold or nil
end

-- When a claim should next look at it.
local function earliest(x)
  if not x.tok then
    return nil
  end
  return x.due and x.mdue and math.min(x.due, x.mdue) or x.due or x.mdue
end

-- Whether it is open, nobody's child and not of the engine's own.
local function counts(x)
  return x.tok and x.st == 'open' and not x.p and not string.find(x.w, ':', 1, true)
end

local function begun(x)
  return x.hold ~= nil or x.wt ~= nil or x.n > 1
end

local function pair_of(queue, served)
  return #queue .. ':' .. queue .. ':' .. served
end

local function place(x, due)
  local pair = pair_of(x.q, x.s)
  local own, turns = P .. 'due:' .. x.tenant .. '/' .. pair, P .. 'turns:' .. pair
  if due then
    call('ZADD', own, text(due), x.key)
  else
    call('ZREM', own, x.key)
  end
  local first = call('ZRANGE', own, 0, 0, 'WITHSCORES')
  if first[1] then
    if call('ZADD', turns, first[2], x.tenant) == 1 then
      call('SADD', P .. 'pairs', pair)
    end
  else
    call('ZREM', turns, x.tenant)
    if call('EXISTS', turns) == 0 then
      call('SREM', P .. 'pairs', pair)
    end
  end
end

local function by(x, what)
  return P .. 'by:' .. x.tenant .. '/' .. what
end

-- Write what has changed, further fields among it, and keep the indexes true.
local function save(x, more)
  tick()
  local old, put, drop = x.old, more or {}, {}
  for _, field in ipairs(FIELDS) do
    local value = x[field]
    if value == nil and old[field] ~= nil then
      drop[#drop + 1] = field
    elseif value ~= old[field] then
      put[#put + 1] = field
      put[#put + 1] = NUMBERS[field] and text(value) or value
    end
  end
  if put[1] then
    call('HSET', P .. 'x:' .. x.key, unpack(put))
  end
  if drop[1] then
    call('HDEL', P .. 'x:' .. x.key, unpack(drop))
  end
  local due = earliest(x)
  if due ~= earliest(old) then
    place(x, due)
  end
  if x.st ~= old.st then
    if old.st then
      call('ZREM', by(x, 's:' .. old.st), x.key)
    end
    call('ZADD', by(x, 's:' .. x.st), text(x.at), x.key)
  end
  if x.hold and not old.hold then
    call('ZADD', by(x, 'held'), text(x.at), x.key)
  elseif old.hold and not x.hold then
    call('ZREM', by(x, 'held'), x.key)
  end
  local was, is = counts(old) and begun(old), counts(x) and begun(x)
  if is and not was then
    call('SADD', P .. 'begun:' .. x.tenant, x.key)
  elseif was and not is then
    call('SREM', P .. 'begun:' .. x.tenant, x.key)
  end
end

-- The mailbox without what is in the log, as pairs of id and letter.
local function unread(key)
  local box, waiting = call('HGETALL', P .. 'm:' .. key), {}
  if not box[1] then
    return waiting
  end
  local folded = call('EXISTS', P .. 'f:' .. key) == 1
  for n = 1, #box, 2 do
    if not folded or call('HEXISTS', P .. 'f:' .. key, box[n]) == 0 then
      waiting[#waiting + 1] = box[n]
      waiting[#waiting + 1] = box[n + 1]
    end
  end
  return waiting
end
