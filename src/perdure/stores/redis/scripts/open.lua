-- The number of the layout that is there, which is ours where there was none. KEYS[1], ARGV[1] as everywhere, ours
local there = redis.call('GET', KEYS[1] .. 'layout')
if not there then
  redis.call('SET', KEYS[1] .. 'layout', ARGV[2])
  there = ARGV[2]
end
return there
