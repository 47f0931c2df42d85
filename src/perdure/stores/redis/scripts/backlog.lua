-- What waits, per queue. How many rows and how many tenants are counted at most
local most, tenants = given[1], given[2]
local counted, found = 0, {}
for _, pair in ipairs(call('SMEMBERS', P .. 'pairs')) do
  local length, from = string.match(pair, '^(%d+):()')
  local queue = string.sub(pair, from, from + length - 1)
  if queue ~= '' and counted < most and tenants > 0 then
    local due = call('ZRANGEBYSCORE', P .. 'turns:' .. pair, '-inf', text(now), 'WITHSCORES', 'LIMIT', 0, text(tenants))
    tenants = tenants - #due / 2
    local it = found[queue] or {0, now}
    for n = 1, #due, 2 do
      local waiting = call('ZCOUNT', P .. 'due:' .. due[n] .. '/' .. pair, '-inf', text(now))
      it[1], it[2], counted = it[1] + waiting, math.min(it[2], tonumber(due[n + 1])), counted + waiting
    end
    if it[1] > 0 then
      found[queue] = it
    end
  end
end
local answer = {}
for queue, it in pairs(found) do
  answer[#answer + 1] = {queue, it[1], text(it[2])}
end
return answer
