-- What holders write. grace, commits
local due = now + given[1]

-- Whether every mail that is done is still there and no message enters the log a second time.
local function folds_once(key, ids, done)
  local seen = {}
  for _, one in ipairs(ids) do
    if seen[one[1]] or call('HEXISTS', P .. 'f:' .. key, one[1]) == 1 then
      return false
    end
    seen[one[1]] = true
  end
  for _, id in ipairs(done) do
    if call('HEXISTS', P .. 'm:' .. key, id) == 0 then
      return false
    end
  end
  return true
end

-- Whether mail is left that this commit does not fold.
local function mail_waits(x, ids, done)
  if call('EXISTS', P .. 'm:' .. x.key) == 0 then
    return false
  end
  local folds = {}
  for _, one in ipairs(ids) do
    folds[one[1]] = true
  end
  for _, id in ipairs(done) do
    folds[id] = true
  end
  for _, id in ipairs(call('HKEYS', P .. 'm:' .. x.key)) do
    if not folds[id] and call('HEXISTS', P .. 'f:' .. x.key, id) == 0 then
      return true
    end
  end
  return false
end

-- The oldest that is left of the lane is due, unless somebody has it.
local function wake_lane(lane, key)
  call('ZREM', P .. 'lane:' .. lane, key)
  local first = call('ZRANGE', P .. 'lane:' .. lane, 0, 0)[1]
  local following = first and load(first)
  if following and following.tok and not following.hold then
    following.due = now
    save(following)
  end
end

local function finish(x)
  for _, topic in ipairs(x.top and cmsgpack.unpack(x.top) or {}) do
    call('ZREM', P .. 'topic:' .. topic, x.key)
  end
  call('DEL', P .. 'm:' .. x.key)
  local lane = x.lane
  x.tok, x.hold, x.due, x.mdue, x.lap, x.hints, x.lane, x.top, x.seq = nil
  return lane
end

local function settle(x, kind, refused, parts)
  local status, wanted, state, waits, result, base = unpack(parts, 1, 6)
  local more = {'ch', text(now)}
  x.st, x.b, x.wt = status, math.max(x.b, base), waits and '1' or nil
  for field, place in pairs({state = state, waits = waits, result = result}) do
    more[#more + 1] = field
    more[#more + 1] = ARGV[place]
  end
  if not waits then
    call('HDEL', P .. 'x:' .. x.key, 'waits')
  end
  local lane
  if kind == 'end' then
    lane = finish(x)
  elseif not refused then
    x.hold, x.due, x.lap, x.hints = nil, wanted, 0, 0
  end
  save(x, more)
  if lane then
    wake_lane(lane, x.key)
  end
end

local function commit(one)
  local key, token, version, rows, ids, landmark, base, kind, parts, status, fired, done, children, mail =
    unpack(one, 1, 14)
  if fired and fired > now then
    return 'early'
  end
  local x = load(key)
  if not x or (version > 0 and version ~= x.n + 1) or not folds_once(key, ids, done) then
    return 'stale'
  end
  -- After a failover a log may have grown anew, as long as it was, without this holder.
  if version > 0 and token < (x.fe or 0) then
    return 'stale'
  end
  if kind and not (x.hold and x.tok == token) then
    return 'stale'
  end
  local refused = kind and mail_waits(x, ids, done)
  if refused and kind == 'end' then
    return 'mail'
  end
  -- From here on it is written.
  if version > 0 then
    append(x, token, rows, ids, landmark)
  end
  x.b = math.max(x.b, base)
  for _, id in ipairs(done) do
    call('HDEL', P .. 'm:' .. key, id)
  end
  if done[1] and call('EXISTS', P .. 'm:' .. key) == 0 then
    x.mdue = nil
  end
  if kind then
    settle(x, kind, refused, parts)
  else
    x.st = status or x.st
    save(x)
  end
  for _, child in ipairs(children) do
    start(child, due)
  end
  for _, letter in ipairs(mail) do
    send(letter, due)
  end
  return refused and 'mail' or 'ok'
end

local answers = {}
for n, one in ipairs(given[2]) do
  answers[n] = commit(one)
end
return answers
