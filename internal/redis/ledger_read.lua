-- Reads a ledger.
-- KEYS  values, changes
-- ARGV  1 the known head ('' if none)
-- Returns the head, the time of the server in seconds and microseconds, the changes, the newest first, and the values,
-- with a nil in place of what the caller does not need: if the head is the known one, it needs neither. If the change
-- of the known head is one of the last 100, the changes end with it, and no values are needed.
local head = redis.call('HMGET', KEYS[1], 'head')[1] or ''
local time = redis.call('TIME')
local known = ARGV[1]
if head == known then
  return {head, time[1], time[2], false, false}
end
local function version(text)
  return tonumber(text:match('^%d+')) or 0
end
local n = version(head) - version(known)
if known ~= '' and n > 0 and n < 100 then
  local changes = redis.call('LRANGE', KEYS[2], 0, n)
  if changes[n + 1] and changes[n + 1]:sub(1, #known + 1) == known .. '\n' then
    return {head, time[1], time[2], changes, false}
  end
end
return {head, time[1], time[2], redis.call('LRANGE', KEYS[2], 0, -1), redis.call('HGETALL', KEYS[1])}
