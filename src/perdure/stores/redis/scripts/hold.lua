-- Take executions that nobody holds, and read them. me, lease, barrier (type, data before and after the lapses), keys with
-- the version and the token that are known
local me, lease, barrier = given[1], given[2], given[3]

local function first_in_lane(x)
  return not x.lane or call('ZRANGE', P .. 'lane:' .. x.lane, 0, 0)[1] == x.key
end

-- Occupy the next version of a former holder, who may still be writing.
local function take_over(x)
  if x.lm == '1' then
    x.lap = math.min(x.lap, 1)
  end
  local data = barrier[2] .. text(x.lap) .. barrier[3]
  local row = text(barrier[1]) .. ' ' .. text(now) .. ' ' .. text(x.tok) .. ' - ' .. data
  append(x, x.tok, {1, 1}, {}, '0', {row})
end

local function hold(key, version, token)
  local x = load(key)
  if not x or not x.tok then
    return {'gone'}
  end
  local holder = live_holder(x)
  if holder and holder ~= me then
    return {'busy', holder}
  end
  if not first_in_lane(x) then
    x.due, x.mdue, x.hints = nil, nil, 0
    save(x)
    return {'queued'}
  end
  local clean = not x.hold and x.lap == 0
  local after = token == x.tok and version or x.b - 1
  if x.hold and x.hold ~= me then
    x.lap = x.lap + 1
  end
  -- The time, if that is more: two primaries, of which one has lost the last hold, do not give the same token.
  x.tok = math.max(x.tok + 1, now)
  if not clean then
    take_over(x)
  end
  x.hold, x.due, x.hints = me, now + lease, 0
  save(x)
  return {'held', text(x.tok), x.d, x.q, x.lap, x.st, x.p or false, x.pr or false, x.lane and 1 or 0, after,
    call('LRANGE', P .. 'l:' .. key, text(after), -1), unread(key)}
end

local answers = {}
for n, one in ipairs(given[4]) do
  answers[n] = hold(one[1], one[2], one[3])
end
return answers
