-- The number of the layout that is there, which is ours where there was none. KEYS[1] as everywhere; our number
--
-- A user who lacks the right to one command would break a script in the middle of its writes, so all are asked for first.
local COMMANDS = {'DEL', 'EXISTS', 'GET', 'HDEL', 'HEXISTS', 'HGET', 'HGETALL', 'HINCRBY', 'HKEYS', 'HLEN', 'HMGET',
  'HSET', 'LINDEX', 'LLEN', 'LRANGE', 'MGET', 'RPUSH', 'SADD', 'SET', 'SMEMBERS', 'SREM', 'ZADD', 'ZCARD', 'ZCOUNT',
  'ZRANGE', 'ZRANGEBYSCORE', 'ZREM', 'ZREVRANGEBYSCORE', 'ZSCORE'}
local key = KEYS[1] .. 'x'
for _, name in ipairs(COMMANDS) do
  if not redis.acl_check_cmd(name, key, key, key) then
    return redis.error_reply('NOPERM this user may not run ' .. name)
  end
end
local there = redis.call('GET', KEYS[1] .. 'layout')
if not there then
  redis.call('SET', KEYS[1] .. 'layout', ARGV[1])
  there = ARGV[1]
end
return there
