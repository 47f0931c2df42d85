-- What is due, the tenants in turn. queues, definitions, limit, grace, visits, doublings
local queues, definitions, limit, grace, visits, doublings = unpack(given, 1, 6)

-- The tenants that have something due, and where. Of very many only the next few hundred, for a claim has an end: what is
-- left out now comes first another time.
local turn = call('HMGET', P .. 'turn', 'tenant', 'from')
local from, room, left_out = tonumber(turn[2] or 0), visits, false
local lines, order, pairs_due = {}, {}, {}

local function visit(pair)
  local turns = P .. 'turns:' .. pair
  local count = call('ZCOUNT', turns, '-inf', text(now))
  local skip = count > room and from % count or 0
  local some = call('ZRANGEBYSCORE', turns, '-inf', text(now), 'LIMIT', text(skip), text(room))
  if skip > 0 and #some < room then
    local rest = math.min(skip, room - #some)
    for _, tenant in ipairs(call('ZRANGEBYSCORE', turns, '-inf', text(now), 'LIMIT', 0, text(rest))) do
      some[#some + 1] = tenant
    end
  end
  for _, tenant in ipairs(some) do
    if not lines[tenant] then
      lines[tenant] = {}
      order[#order + 1] = tenant
    end
    table.insert(lines[tenant], {from = P .. 'due:' .. tenant .. '/' .. pair, at = 0, next = 1, rows = {}})
  end
  room = room - #some
  left_out = left_out or #some < count
end

for _, queue in ipairs(queues) do
  for _, served in ipairs(definitions) do
    pairs_due[#pairs_due + 1] = pair_of(queue, served)
  end
end
for n = 1, #pairs_due do
  visit(pairs_due[(n - 1 + math.floor(from / visits)) % #pairs_due + 1])
end
if not order[1] then
  return {}
end

-- What comes next of one source, read in pages as it is needed.
local page = math.max(1, math.ceil(limit / #order))
local function head(source)
  if source.next > #source.rows and source.at >= 0 then
    source.rows = call('ZRANGEBYSCORE', source.from, '-inf', text(now), 'WITHSCORES', 'LIMIT', text(source.at), text(page))
    source.at = #source.rows == 2 * page and source.at + page or -1
    source.next = 1
  end
  return source.rows[source.next], tonumber(source.rows[source.next + 1])
end

-- The earliest of a tenant, whichever queue it is in.
local function take(line)
  local best, key, due
  for _, source in ipairs(line) do
    local one, at = head(source)
    if one and (not due or at < due) then
      best, key, due = source, one, at
    end
  end
  if best then
    best.next = best.next + 2
  end
  return key
end

-- One of each tenant in turn, beginning behind the one who was served last.
table.sort(order)
local begin = 1
while order[begin] and order[begin] <= (turn[1] or '') do
  begin = begin + 1
end
local chosen, served, idle, place_in = {}, nil, 0, begin
while #chosen < limit and idle < #order do
  local tenant = order[(place_in - 1) % #order + 1]
  local key = take(lines[tenant])
  if key then
    chosen[#chosen + 1], served, idle = key, tenant, 0
  else
    idle = idle + 1
  end
  place_in = place_in + 1
end

-- Free a lapsed hold and count it; hint again later and later while nobody answers.
local function hint(x)
  if x.due and x.due <= now then
    if x.hold then
      x.hold, x.lap, x.tok = nil, x.lap + 1, x.tok + 1
    end
    x.due, x.hints = now + grace * 2 ^ math.min(x.hints, doublings), x.hints + 1
  end
  if x.mdue and x.mdue <= now then
    x.mdue = now + grace
  end
  save(x)
  return {x.key, x.q, live_holder(x) or false}
end

for n, key in ipairs(chosen) do
  chosen[n] = hint(load(key))
end
call('HSET', P .. 'turn', 'tenant', served, 'from', left_out and text(from + visits) or '0')
return chosen
