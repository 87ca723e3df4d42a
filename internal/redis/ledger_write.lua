-- Writes changes and values to a ledger, if the head is the expected one.
-- KEYS  values, changes
-- ARGV  1 the expected head ('' if the ledger must be empty), 2 the new head, 3 how many changes are kept, 4 the number
-- of changes that follow, the oldest first; then pairs of an ID and a value ('': remove it)
-- Returns 1, or 0 if the head is another one. If the first write fails, because memory is full, nothing has been written.
if (redis.call('HMGET', KEYS[1], 'head')[1] or '') ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'head', ARGV[2])
if ARGV[1] == '' then
  redis.call('LTRIM', KEYS[2], 1, 0) -- empties it: only the values are lost if a master dies while their slot moves
end
local last = 4 + tonumber(ARGV[4])
for i = 5, last do
  redis.call('LPUSH', KEYS[2], ARGV[i])
end
redis.call('LTRIM', KEYS[2], 0, ARGV[3] - 1)
for i = last + 1, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', KEYS[1], ARGV[i])
  else
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  end
end
return 1
