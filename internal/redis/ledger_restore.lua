-- Writes a ledger that a process has in memory into a server that has none.
-- KEYS  head, values
-- ARGV  1 version, 2 mac, 3 checkpoint, 4 its mac, 5 its signature; then pairs of an ID and a value
-- Returns 1, or 0 if the server has a ledger.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'mac', ARGV[2], 'checkpoint', ARGV[3], 'checkpoint_mac', ARGV[4], 'signature', ARGV[5])
for i = 6, #ARGV, 2 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
end
return 1
