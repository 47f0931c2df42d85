-- Where a message is: in the log, or else in the mailbox. key, id
local version = call('HGET', P .. 'f:' .. given[1], given[2])
if version then
  return {tonumber(version), call('LINDEX', P .. 'l:' .. given[1], text(version - 1))}
end
return {0, call('HGET', P .. 'm:' .. given[1], given[2])}
