-- Returns the secret that all processes share. KEYS: the hash. ARGV: the secret to store if there is none.
local have = redis.call('HMGET', KEYS[1], 'secret')[1]
if have then
  return have
end
redis.call('HSET', KEYS[1], 'secret', ARGV[1])
return ARGV[1]
