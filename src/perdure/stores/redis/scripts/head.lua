-- One head. key
local x = call('HGETALL', P .. 'x:' .. given[1])
return {text(now), x, call('LLEN', P .. 'l:' .. given[1]), call('HLEN', P .. 'm:' .. given[1])}
