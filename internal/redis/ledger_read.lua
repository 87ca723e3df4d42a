-- Reads a ledger, with a part of its values, because one call with thousands of them would delay decisions.
-- KEYS  values, changes
-- ARGV  1 the known head ('' if none), 2 the cursor of HSCAN: '0' in the first call
-- Returns the head, the time of the server in seconds and microseconds, the changes, the newest first, the next cursor,
-- the number of fields of the values, and a part of them. If the head is the known one, it returns the first three only.
-- If the change of the known head is one of the last 100, the changes end with it, and are the last thing returned.
local head = redis.call('HMGET', KEYS[1], 'head')[1] or ''
local time = redis.call('TIME')
local known = ARGV[1]
if head == known then
  return {head, time[1], time[2]}
end
local function version(text)
  return tonumber(text:match('^%d+')) or 0
end
local n = version(head) - version(known)
if known ~= '' and n > 0 and n < 100 then
  local changes = redis.call('LRANGE', KEYS[2], 0, n)
  if changes[n + 1] and changes[n + 1]:sub(1, #known + 1) == known .. '\n' then
    return {head, time[1], time[2], changes}
  end
end
local changes = {}
if ARGV[2] == '0' then
  changes = redis.call('LRANGE', KEYS[2], 0, -1)
end
local page = redis.call('HSCAN', KEYS[1], ARGV[2], 'COUNT', 250)
return {head, time[1], time[2], changes, page[1], redis.call('HLEN', KEYS[1]), page[2]}
