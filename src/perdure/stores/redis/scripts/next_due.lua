-- When the earliest is due, and what time it is. queues, definitions
local least = false
for _, queue in ipairs(given[1]) do
  for _, served in ipairs(given[2]) do
    local first = call('ZRANGE', P .. 'turns:' .. pair_of(queue, served), 0, 0, 'WITHSCORES')[2]
    if first and (not least or tonumber(first) < least) then
      least = tonumber(first)
    end
  end
end
return {least and text(least), text(now)}
