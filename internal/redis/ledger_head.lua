-- Returns the fields of the head of a ledger (KEYS[1]), and the time of the server in seconds and microseconds.
local h = redis.call('HMGET', KEYS[1], 'version', 'mac', 'checkpoint', 'checkpoint_mac', 'signature')
local t = redis.call('TIME')
return {h[1] or '0', h[2] or '', h[3] or '0', h[4] or '', h[5] or '', t[1], t[2]}
