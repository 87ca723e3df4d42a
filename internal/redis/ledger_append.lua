-- Appends an entry to a ledger and changes the values, if the head is the expected one.
-- KEYS  head, values, log
-- ARGV  1 expected version, 2 expected mac, 3 version, 4 mac, 5 body, 6 ID, 7 value ('': remove it), 8
-- checkpoint ('': trim nothing), 9 its mac, 10 its signature, 11… IDs that have expired
-- Returns 1, or 0 if the head is another one. The entry is written first. If that fails, because memory is
-- full or the log is ahead of the head, nothing has been written.
local h = redis.call('HMGET', KEYS[1], 'version', 'mac')
if (h[1] or '0') ~= ARGV[1] or (h[2] or '') ~= ARGV[2] then
  return 0
end
redis.call('XADD', KEYS[3], ARGV[3] .. '-0', 'body', ARGV[5], 'mac', ARGV[4])
redis.call('HSET', KEYS[1], 'version', ARGV[3], 'mac', ARGV[4])
if ARGV[7] == '' then
  redis.call('HDEL', KEYS[2], ARGV[6])
else
  redis.call('HSET', KEYS[2], ARGV[6], ARGV[7])
end
for i = 11, #ARGV do
  redis.call('HDEL', KEYS[2], ARGV[i])
end
if ARGV[8] ~= '' then
  redis.call('HSET', KEYS[1], 'checkpoint', ARGV[8], 'checkpoint_mac', ARGV[9], 'signature', ARGV[10])
  redis.call('XTRIM', KEYS[3], 'MINID', string.format('%.0f', tonumber(ARGV[8]) + 1) .. '-0')
end
return 1
