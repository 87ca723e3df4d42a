-- take.lua decides and charges inside Redis. It contains package algorithms again, function by function and
-- in the same order, so that both can be read side by side. Numbers are doubles, all of them integers up to
-- 2^53, so sums, products and floor(a/b) are exact. All bytes are little-endian.
--
--   KEYS     the buckets, each once. If they are in several cluster slots of one node, KEYS has only the
--            first, because the keys of a call must be in one slot. ARGV[4…] has the others, which the node
--            checks when they are read
--   ARGV[1]  the time in us, packed as a double; 0: the server's own time
--   ARGV[2]  the limits, 13 doubles each: kind, flags, capacity, max_reserved, rate, period, p, q, v, tick,
--            initial, p1, v1. They are the fields of algorithms.Limit; tick is in us, period in ticks
--
--            flag 1   overdraw
--            flag 2   denied requests are charged too (takes_denied)
--            flag 4   per_request
--            flag 8   a calendar: 8 doubles follow, its number, the number of the first window, the length
--                     of the longest possible window, and the starts of five windows
--            flag 16  a penalty: 3 doubles follow, before those of a calendar: how many denials start a block,
--                     and the lengths of the first and of the longest block, in us
--            flag 32  a usual limit, see below
--            flag 64  the limit settles: two doubles follow, before all others: max_debt, and the time in us for which the
--                     bucket stores open reservations (open_for); 0: it stores none
--            flag 128 initial is less than capacity
--   ARGV[3]  the charges, 4 doubles each: the number of the key; the number of the limit plus 2^20 times
--            the flags; the cost; the phase of a fixed window. Two doubles 0 are the end
--
--            flag 1   the next charge belongs to the same group, which is charged as a whole or not at all
--            flag 2   two more doubles follow: the longest wait, in us (max_wait), and for a refund or a
--                     settlement the time of the charge that it corrects (ChargedAt, here of); 0: none
--            flag 4   reserve
--            flag 8   a dry run
--            flag 16  the cost is in the unit of the value, 1/q unit (Charge.Scaled, here raw)
--            flag 32  settle
--            flag 64  then: if this charge is not allowed, the next charge without this flag is made
--            flag 128 one more double follows, the cost of Own: it is charged in place of the cost if the
--                     charges before with flag 64 are made
--            flag 256 Own is reserved
--            flag 512 free: a denial changes nothing
--            flag 1024 a slot (Charge.Slot): 26 bytes follow, its name, the operation and, as a double, the ttl in us
--            flag 2048 an open reservation, or its settlement (Charge.Open)
--
--            A charge with limit 0 is the head of a group with an idempotency key. Its key is the key of
--            the record, its cost is the time in ms for which the record is kept, and 32 more bytes
--            identify the request
--   returns  the time of the decision, a double, and for each charge a byte of flags and up to five
--            doubles: value, remaining, retry, reset, and wait. An answer of the time alone means that this
--            time is outside of the given windows of a calendar, and that nothing was charged
--
--            flag 1   allowed
--            flag 2   never: the cost is more than the bucket can ever hold
--                     The last double of a denied charge with Own is not the wait, but the retry time of
--                     Own; a retry time of 0 means that only Own can be allowed
--            flag 4   the last double is Decision.Lost. Of a head: replayed. Of a denied charge with Own: Own can
--                     never be allowed
--            flag 8   of a head: the record belongs to another request, nothing was charged
--            flag 16  the three times are counted in windows of a calendar
--            flag 32  the last double is the rest of the block by a penalty, in us
--            flag 64  the last double is 0 and left out
--            flag 128 the retry time is 0 and left out
--
-- A stored bucket is a string, except for that of a sliding log, which is a list (see "The log"), and that of a
-- concurrency limit, which is a sorted set (see "Slots"):
--
--   byte 0   0: a tick is 1 us; 1: a tick is 1 ms; 2: a window of a calendar; 4: a sliding window counter
--   then     doubles; at, the time of the last charge, is in us:
--            token bucket, leaky bucket  value, at, p, q, v                              in all 41 bytes
--            fixed window                value, at, rate, period, capacity, phase                 49
--            window of a calendar        value, at, rate, capacity, the number of the calendar,   57
--                                        the number of the window, the start of the next one
--                                        plus the length of the longest in hours
--            sliding window counter      value, prev, at, period, 0                               41
--            guaranteed                  value, prev, at, p, q, v, p1, v1                         65
--   then     nothing; or the denials of a penalty: blocks, till, and the time of each denial; or of a limit that
--            settles the sums of its open reservations, if there are any: -2, how many, and since, count and units
--            of each; and its peaks: -1, and the room and time of each, at most four. The first double shows which
--
-- The script first reads everything and then writes everything, so an error in between leaves no changes. A server
-- without free memory refuses a write with the flag denyoom only if it is the first write of the script. So either
-- nothing is written, or everything.
--
-- Redis creates the functions of a script again for each EVALSHA. For the hundred functions below that costs more than
-- ten decisions. So a loop decides plain charges. It reads and writes their states without tables, and calls charge_level.
-- All other functions are created when a charge needs them: each function with_… creates those that stand in it.

-- charge_level contains all arithmetic of token buckets, fixed windows and leaky buckets. It uses no locals from outside,
-- because each would cost time in each call: x - x % 1 is floor(x), and x + -x % 1 is the ceiling.
--
-- steps have started since the bucket held value: ticks, or windows. p flows in at the start of each step; l.p is larger
-- than any value if each window starts at capacity. value, cost, least and refund are in 1/q unit. The charge is allowed
-- if the value after it is not below least. If refund is not nil, it is added to the bucket, and cost is ignored. If keeps
-- is true, a denial takes nothing, whatever the limit. p, q and v are those of l.
--
-- It returns: 1 for allowed, 2 for never or 0 for denied; the next value; the remaining units; and three numbers of
-- steps, until a retry succeeds, until the bucket is full, and until the reserved units are there.
local function charge_level(l, p, q, v, value, steps, cost, least, refund, keeps)
  local flags, retry, wait = 1, 0, 0
  local flown = steps * p
  if flown < v - value then value = value + flown else value = v end
  if refund then
    value = value + refund
    if value > v then value = v end
  elseif cost <= v - least and value - cost >= least then
    value = value - cost
    if value < 0 then
      wait = -value / p
      wait = wait + -wait % 1
    end
  elseif l.charges_denied and not keeps then
    local bottom = -l.max_reserved * q
    if value < bottom then bottom = value end
    value = value - cost
    if value < bottom then value = bottom end
    if cost > v and l.takes_denied then
      flags = 2
    else
      flags, retry = 0, cost + least
      if retry > v then retry = v end -- a bucket never holds more than v: retry when it is full
      retry = (retry - value) / p
      retry = retry + -retry % 1
      if retry < 1 and l.length then retry = 1 end
    end
  elseif cost > v - least then
    flags = 2
  else
    flags, retry = 0, (cost + least - value) / p
    retry = retry + -retry % 1
  end
  local remaining, reset = value / q, (v - value) / p
  return flags, value, remaining > 0 and remaining - remaining % 1 or 0, retry, reset + -reset % 1, wait
end

-- with_peaks creates the functions for limits that settle (peaks.go). They use few locals from outside, because each
-- would cost time in each call.
--
-- A peak is a moment and a room: what the bucket lacked at that moment to be full. Since then it has lacked at least as
-- much. Peaks are bytes, at most four peaks with two doubles each, oldest first. The functions get a string b, and the
-- position at from which it has the peaks. If b is nil, the peaks are unknown.
local function with_peaks()
  -- push returns the peaks with one more, (till, room). It drops peaks that the new one makes superfluous. If there would
  -- be five, two neighbours become one, with the time of the later and the room of the earlier one: the two with the
  -- smallest ratio of their rooms.
  local function push(b, at, till, room)
    local pack, unpack_at, sub, size = struct.pack, struct.unpack, string.sub, #b
    if size >= at then
      local last, last_till = unpack_at('<dd', b, size - 15)
      if last_till >= till then
        if last <= room then return sub(b, at) end
        till = last_till
      end
      while last >= room do
        size = size - 16
        if size < at then break end
        last = unpack_at('<d', b, size - 15)
      end
    end
    if size < at + 63 then return sub(b, at, size) .. pack('<dd', room, till) end
    local r1, _, r2, _, r3, _, r4 = unpack_at('<ddddddd', b, at)
    local least, i = r2 / r1, at + 8
    if r3 / r2 <= least then least, i = r3 / r2, at + 24 end
    if r4 / r3 <= least then least, i = r4 / r3, at + 40 end
    if room / r4 <= least then return sub(b, at, at + 55) .. pack('<d', till) end
    return sub(b, at, i - 1) .. sub(b, i + 16, size) .. pack('<dd', room, till) -- without the time of a peak and the room of the next one
  end

  -- lower returns the peaks as if a charge of units at time since had never been made: the room of each later peak
  -- becomes smaller by units.
  local function lower(b, at, since, units)
    local next = ''
    while at <= #b do
      local room, till
      room, till, at = struct.unpack('<dd', b, at)
      next = push(next, 1, till, till > since and room - units or room)
    end
    return next
  end

  -- peaked returns the peaks of a bucket of l after a charge or a refund at time t. room is what the bucket lacked to be
  -- full before the charge, and left is what it lacks now. since is the time of the charge that a refund corrects, or 0.
  local function peaked(l, b, at, t, room, left, since)
    if room == left or l.length and b and #b >= at then return b and string.sub(b, at) end -- l.length: a window
    local tick = l.tick or 1
    t = t - t % tick
    if not b then
      return left > room and struct.pack('<dd', 0, t + tick) or nil
    elseif #b < at then
      return struct.pack('<dd', 0, t)
    elseif left < room then
      if since > 0 then b, at = lower(b, at, since - since % tick, room - left), 1 end
      return push(b, at, t + tick, left)
    end
    return push(b, at, t, room)
  end

  -- charged returns value after a cost that is charged even if it is not available, and the number of units that are lost.
  -- The cost lowers the value to -max_debt at most; the rest of the cost is lost. value is in 1/q unit, the cost in units.
  local function charged(l, value, cost)
    local q, to = l.q, -l.max_debt * l.q
    local most = l.v / q + l.max_debt
    if value < to then to = value end
    most = value - (cost < most and cost or most) * q
    if most > to then to = most end
    most = (value - to) / q
    return to, cost - (most - most % 1)
  end

  -- room_since returns the smallest room that a bucket has had since a charge at time since. last is the time of its
  -- last charge, and room is its room now. The result is 0 if it is not known.
  local function room_since(l, last, b, at, since, room)
    since = since - since % (l.tick or 1)
    if since > last or not b or #b < at then return 0 end
    if struct.unpack('<d', b, #b - 7) <= since then return room end -- usually there is no peak after the charge
    while true do
      local least, till
      least, till, at = struct.unpack('<dd', b, at)
      if till > since then return math.min(room, least) end
    end
  end

  -- settle decides the settlement at pos of a usual limit, with or without an idempotency key. It returns the position of
  -- the next charge and the number of answers; or nothing, if the function decide must decide.
  local function settle(pos, n, now, given, usual, stored, lives, answers)
    local pack, unpack_at, floor, blob = struct.pack, struct.unpack, math.floor, ARGV[3]
    local k, what, cost, phase, next = unpack_at('<dddd', blob, pos)
    local record, ttl, of, _
    if what == 0 then
      if stored[k] then return end
      record, ttl, of = k, cost, string.sub(blob, next, next + 31)
      k, what, cost, phase, next = unpack_at('<dddd', blob, next + 32)
    end
    local flags, l, since = floor(what / 1048576), usual[what % 1048576], 0
    if not l or not l.max_debt or l.below or flags < 32 or flags > 38 or flags % 2 == 1 then return end
    if flags % 4 >= 2 then _, since, next = unpack_at('<dd', blob, next) end
    if cost < 0 and since == 0 then return end
    local p, q, v, length, b = l.p, l.q, l.v, l.length, stored[k]
    local had, last, into, head = v, now, 0, 41
    if length then into, head = (now - phase) % length, 49 end
    local peaks, at = b or '', b and head + 9 or 1
    if b then
      if #b == head then peaks = nil elseif unpack_at('<d', b, head + 1) ~= -1 then return end -- denials or open reservations
      local ms, is, p2, q2, v2, phase2
      ms, is, last, p2, q2, v2, phase2 = unpack_at(length and '<Bdddddd' or '<Bddddd', b)
      if ms ~= 0 or last > now or p2 ~= p or q2 ~= (length or q) or v2 ~= v or length and phase2 ~= phase then return end
      local steps = now - last
      if length then steps = math.max(0, -floor((into - steps) / length)) end
      if steps * p < v - is then had = is + steps * p end
    end
    if cost == 0 and had < 0 then return end
    local pay, least, refund, lost = 0, 0, nil, 0
    if cost > 0 then
      least, lost = charged(l, had, cost)
      pay = had - least
    elseif cost < 0 and not (length and since < now - into) then
      refund = b and math.min(-cost * q, room_since(l, last, peaks, at, since, v - had)) or 0
    end
    local _, value, remaining, _, reset = charge_level(l, p, q, v, had, 0, pay, least, refund)
    if length then reset = math.max(1, reset) * length - into end
    if cost > 0 or cost < 0 and b then
      local tail = peaked(l, peaks, at, now, v - had, v - value, since)
      tail = tail and '\0\0\0\0\0\0\240\191' .. tail or '' -- -1 as a double
      if length then
        stored[k] = pack('<Bdddddd', 0, value, now, p, length, v, phase) .. tail
      else
        stored[k] = pack('<Bddddd', 0, value, now, p, q, v) .. tail
      end
      local ms = floor(reset / 1000) + 2
      if given and ms < 86400000 then ms = 86400000 end -- a day, as in lifetime
      lives[k] = ms
    end
    local answer = pack('<Bddddd', lost > 0 and 5 or 1, value, remaining, 0, reset, lost)
    if record then
      n = n + 1
      answers[n] = string.rep('\0', 41)
      stored[record], lives[record] = of .. answers[1] .. answer, ttl
    end
    answers[n + 1] = answer
    return next, n + 1
  end

  return peaked, charged, room_since, push, settle
end

-- Slots ------------------------------------------------------------------------------------------

-- with_slots creates the functions for concurrency limits. take_alone and take_slot use the same buckets. The functions use
-- few locals from outside, and tables have room for all of their fields, because both cost more than the arithmetic.
--
-- A bucket is a sorted set. A member is the name of a slot and its units (two bytes), and its score is the time of its
-- expiry. The first member, with the score -1, is the head: four doubles, the units of all slots, the last time, a time
-- before which no slot expires, and a time until which the key lives. They are no scores, because Redis needs as long to
-- format or parse a score as for a call.
local function with_slots(now, given, names)
  local limits = {} -- by number: capacity, period and overdraw
  local buckets = {} -- by key: the state after the decisions of this call

  -- load reads the bucket of key k, and when the slot member expires. units and expiry are those of the time b.at. gone
  -- is the number of units that have expired and are still stored. changes has the new expiries; 0: returned.
  local function load(k, member)
    local b, name, call = buckets[k], names[k], redis.call
    if not b then
      local head = call('ZRANGE', name, '0', '0')[1]
      b = {
        head = head, units = 0, at = now, shift = 0, gone = 0, purge = false, earliest = math.huge, till = 0, ends = false,
        changes = false, moves = false,
      }
      buckets[k] = b
      if head then
        local last
        b.units, last, b.earliest, b.till = struct.unpack('<dddd', head)
        if last - now > 60000000 then b.shift = last - now elseif last > now then b.at = last end
        last = b.at + b.shift
        if b.earliest <= last then
          local expired = call('ZRANGEBYSCORE', name, 0, last)
          for i = 1, #expired do b.gone = b.gone + struct.unpack('<H', expired[i], 18) end
          local next = call('ZRANGE', name, #expired + 1, #expired + 1, 'WITHSCORES')[2]
          b.purge, b.units, b.earliest = #expired > 0, b.units - b.gone, next and tonumber(next) or math.huge
        end
        b.earliest = b.earliest - b.shift
      end
    end
    local ends = b.ends and b.ends[member]
    if not ends then
      local score = b.head and call('ZSCORE', name, member)
      ends = score and tonumber(score) - b.shift or 0
      if b.ends then b.ends[member] = ends else b.ends = { [member] = ends } end
    end
    return b, ends
  end

  -- take_slot decides the charge a of key k, as Limit.takeSlots does, and stores the decision in d.
  local function take_slot(k, l, a, d, dry_run)
    local MAX_SLOTS, max = 10000, math.max
    local cost = a.cost
    local member = (a.slot or '') .. struct.pack('<H', max(0, math.min(cost, MAX_SLOTS + 1)))
    local b, ends = load(k, member)
    local own = a.slot and ends > b.at
    local units = own and b.units - cost or b.units
    local op, expires, changes = a.op or 0, 0, own
    d.allowed, d.never, d.retry, d.reset, d.wait, d.blocked, d.lost, d.timed = true, false, 0, 0, 0, 0, 0, true
    if op == 0 then
      d.allowed = cost <= 0 or cost <= l.capacity - units
      changes = d.allowed or (l.overdraw and not a.free and cost <= MAX_SLOTS - units)
      d.never = not changes and (l.overdraw or cost > l.capacity)
      changes = changes and cost > 0
      if cost > 0 and not a.slot and not dry_run then d.allowed, d.never, changes = false, true, false end
      expires = b.at + l.period
    else
      if not own then d.lost = max(0, cost) end
      if op == 2 then expires = b.at + a.ttl end
    end
    if (changes and expires > 0) or (own and not changes) then units = units + cost end
    d.value, d.remaining = l.capacity - units, max(0, l.capacity - units)
    if dry_run or cost <= 0 then return end
    b.moves = b.moves or b.shift > 0
    if not changes then return end
    if op == 0 then d.lost = b.gone end
    b.gone, b.units, b.ends[member] = 0, units, expires
    if b.changes then b.changes[member] = expires else b.changes = { [member] = expires } end
    if expires > 0 and expires < b.earliest then b.earliest = expires end
  end

  -- take_alone answers the charge at pos, if it is one of a concurrency limit and alone in its group. It returns the
  -- position of the next charge, and the answer.
  local function take_alone(blob, pos)
    local pack, unpack_at = struct.pack, struct.unpack
    local k, what, cost = unpack_at('<ddd', blob, pos)
    local number = what % 1048576
    local flags, l = (what - number) / 1048576, limits[number]
    if not l or flags % 2 == 1 then return end
    pos = pos + 32
    if flags % 4 >= 2 then pos = pos + 16 end
    local d = {
      cost = cost, free = flags % 1024 >= 512, slot = false, op = 0, ttl = 0, allowed = true, never = false, value = 0,
      remaining = 0, retry = 0, reset = 0, wait = 0, blocked = 0, lost = 0, timed = true,
    }
    if flags % 2048 >= 1024 then d.slot, d.op, d.ttl, pos = unpack_at('<c17Bd', blob, pos) end
    take_slot(k, l, d, d, flags % 16 >= 8)
    local answer = (d.allowed and 1 or 0) + (d.never and 2 or 0) + 128
    if d.lost > 0 then return pos, pack('<Bdddd', answer + 4, d.value, d.remaining, 0, d.lost) end
    return pos, pack('<Bddd', answer + 64, d.value, d.remaining, 0)
  end

  -- write stores the changed slots of b and its head. After a longer step back of the clock, all slots expire earlier.
  local function write(name, b)
    local call, DAY = redis.call, 86400000000
    if b.shift > 0 then
      local slots = call('ZRANGE', name, 1, -1, 'WITHSCORES')
      for i = 1, #slots, 2 do call('ZADD', name, math.max(0, tonumber(slots[i + 1]) - b.shift), slots[i]) end
    end
    if b.changes and b.purge then call('ZREMRANGEBYSCORE', name, 0, b.at) end
    local last, scores, n, gone, m = 0, { '-1', '', nil, nil }, 2, { b.head, nil }, b.head and 1 or 0
    for member, expires in pairs(b.changes or {}) do
      if expires == 0 then
        m = m + 1
        gone[m] = member
      else
        scores[n + 1], scores[n + 2], n = expires, member, n + 2
        if expires > last then last = expires end
      end
    end
    local life
    if last > b.till or given and last > 0 then -- keys expire by the server's clock, not by the given time
      life = math.floor(math.max(last - now, given and DAY or 0) * 1.125)
      b.till = now + life
    end
    scores[2] = struct.pack('<dddd', b.units + b.gone, b.at, b.changes and b.earliest or 0, b.till)
    call('ZADD', name, unpack(scores, 1, n))
    if scores[2] == b.head then gone[1] = '' end
    if m > 0 then call('ZREM', name, unpack(gone, 1, m)) end
    if life then call('PEXPIRE', name, math.floor(life / 1000) + 2) end
  end

  local function write_slots()
    for k, b in pairs(buckets) do
      if b.changes and b.units == 0 then
        redis.call('DEL', names[k])
      elseif b.changes or b.moves then
        write(names[k], b)
      end
    end
  end

  return limits, take_slot, take_alone, write_slots
end

-- The call ----------------------------------------------------------------------------------------

local pack, unpack_at, call = struct.pack, struct.unpack, redis.call

local now, given = nil, ARGV[1] ~= '\0\0\0\0\0\0\0\0'
if given then
  now = unpack_at('<d', ARGV[1])
else
  local t = call('TIME')
  now = t[1] * 1000000 + t[2]
end

local names = KEYS
if #ARGV > 3 then names = { KEYS[1], unpack(ARGV, 4) } end

-- usual has the usual limits by number, and false for each other one. A usual limit is a token bucket or a fixed
-- window in us with a rate above 0, without overdraw, calendar and penalty. One that settles has max_debt.
local usual, settles = {}, false -- settles: one of them settles
local slot_limits, take_slot, take_alone, write_slots -- nil without a concurrency limit
do
  local limits = ARGV[2]
  local at, size, i = 1, #limits, 0
  while at <= size do
    local kind, flags, capacity, max_reserved, rate, period, p, q, v = unpack_at('<ddddddddd', limits, at)
    i = i + 1
    local below = flags >= 128
    flags = flags % 128
    if flags % 64 < 32 then
      usual[i] = false
      if kind == 7 then
        if not slot_limits then slot_limits, take_slot, take_alone, write_slots = with_slots(now, given, names) end
        slot_limits[i] = { capacity = capacity, period = period, overdraw = flags % 2 == 1 }
      end
      at = at + (flags >= 64 and 16 or 0) + (flags % 32 >= 16 and 24 or 0) + (flags % 16 >= 8 and 64 or 0)
    else
      local takes_denied, max_debt = flags % 4 >= 2, nil
      if flags >= 64 then
        settles, max_debt = true, unpack_at('<d', limits, at + 104)
        at = at + 16
      end
      if kind == 1 then -- at most eight fields: a ninth would double the table
        usual[i] = { max_reserved = max_reserved, p = p, q = q, v = v, below = below, max_debt = max_debt }
      else
        usual[i] = {
          length = period, rate = rate, max_reserved = max_reserved, p = flags % 64 > 32 and 9007199254740992 or rate, q = 1,
          v = capacity, takes_denied = takes_denied, charges_denied = takes_denied, below = below, max_debt = max_debt,
        }
      end
    end
    at = at + 104
  end
end

-- Keys of several slots cannot be read in one command. If there are concurrency limits, the strings are read with the
-- first charge that needs one.
local stored = {}
if #ARGV > 3 then
  for k = 1, #names do stored[k] = call('MGET', names[k])[1] end
elseif not slot_limits then
  stored = call('MGET', unpack(names))
else
  setmetatable(stored, { __index = function(_, k)
    local all = call('MGET', unpack(names))
    for i = 1, #names do stored[i] = all[i] end
    return all[k]
  end })
end

-- The loop decides plain charges of usual limits: a cost from 1 to the capacity, of a bucket that is new or was last
-- charged under the same numbers. The charge is alone, possibly with reserve, or in a group of such charges, possibly
-- with an alternative. The loop leaves most settlements to settle_alone, and slots to take_alone. All other charges are
-- decided by decide, which reads the states that the loop has left in stored.
local lives, answers, n = {}, { pack('<d', now) }, 1
local state, decide, settle, write_logs = false

local peaked, charged, room_since, push, settle_alone
if settles then peaked, charged, room_since, push, settle_alone = with_peaks() end

local blob = ARGV[3]
local pos, k, what = 1, unpack_at('<dd', blob) -- k and what of the charge at pos
-- These describe the current group. first is its position (nil: there is no group), and before is the number of answers
-- before it. held has what must be written for it: a key, a state and a lifetime in turn, m values in all. If one of its
-- charges is denied, all are decided again, and the answers of those that would be allowed state the units that are left.
local first, before, held
local m, denied, again = 0, false, false
local plan -- whether the charge before was allowed, if this one is its alternative; else nil
while true do
  while k > 0 do
    local l, joined, reset, b = usual[what], false
    local next_k, next_what, instead, reserve
    if l == nil then
      l, joined = usual[what - 1048576], true -- the next charge belongs to the same group
      if l == nil and plan == nil then
        l, instead = usual[what - 68157440], true -- and is its alternative
        if l == nil and not first then l, joined, instead, reserve = usual[what - 4194304], false, nil, true end
      end
    end
    repeat
      if plan and l ~= nil then -- the alternative is not needed
        next_k, next_what = unpack_at('<dd', blob, pos + 32)
        n, reset = n + 1, 0
        answers[n] = pack('<Bddd', 192, 0, 0, 0)
        break
      end
      if not l or state and state[k] ~= nil then break end
      b = stored[k]
      local cost, phase, flags
      cost, phase, next_k, next_what = unpack_at('<dddd', blob, pos + 16)
      local p, q, v, length = l.p, l.q, l.v, l.length
      local value, remaining, retry, wait, written
      cost, value = cost * q, v
      if cost <= 0 or cost > v then break end
      local steps, since, head = 0, 0, 41 -- since: the time from the start of the step until now
      if length then since, head = (now - phase) % length, 49 end
      if b then
        if #b ~= head and not l.max_debt then break end
        local ms, is, at, p2, q2, v2, phase2 = unpack_at(length and '<Bdddddd' or '<Bddddd', b)
        if ms ~= 0 or at > now or v2 ~= v then break end
        value, steps = is, now - at
        if length then
          if p2 ~= l.rate or q2 ~= length or phase2 ~= phase then break end
          steps = (steps - since) / length
          steps = steps > 0 and steps + -steps % 1 or 0
        elseif p2 ~= p or q2 ~= q then
          break
        end
        if #b ~= head and unpack_at('<d', b, head + 1) ~= -1 then break end -- denials or open reservations
        if l.below and now - at >= 86400000000 then break end -- a day: it may count as new
      elseif l.below then
        break
      end
      local had, least = value, 0
      if reserve then
        if l.charges_denied then break end
        least = -l.max_reserved * q
      end
      flags, value, remaining, retry, reset, wait = charge_level(l, p, q, v, had, steps, cost, least)
      if denied then
        if flags == 1 then flags, value, remaining, retry, reset = charge_level(l, p, q, v, had, steps, 0, 0) end
      elseif flags == 1 or l.charges_denied then
        if length then
          written = pack('<Bdddddd', 0, value, now, l.rate, length, v, phase)
        else
          written = pack('<Bddddd', 0, value, now, p, q, v)
        end
        if l.max_debt then
          local peaks, from = b or '', b and head + 9 or 1
          if b and #b == head then peaks = nil end
          written = written .. '\0\0\0\0\0\0\240\191' .. peaked(l, peaks, from, now, v - value - cost, v - value, 0)
        end
      end
      if length then
        if retry > 0 then retry = retry * length - since end
        if wait > 0 then wait = wait * length - since end
        reset = (reset > 1 and reset or 1) * length - since
      end
      local together = first or joined
      if together then
        if denied then
          if l.charges_denied then
            reset = nil
            break
          end
        elseif flags == 0 and not instead then
          denied, again, reset = true, true, nil
          break
        end
        for i = 1, m, 3 do
          if held[i] == k then reset = nil end -- stored does not have this group's earlier charge of the bucket yet
        end
        if not reset then break end
      end
      if written then
        local ttl = (reset - reset % 1000) / 1000 + 2
        if l.below then ttl = ttl + 86400000 end
        if given and ttl < 86400000 then ttl = 86400000 end -- a day, as in lifetime
        if together then
          held = held or {}
          held[m + 1], held[m + 2], held[m + 3] = k, written, ttl
          m = m + 3
        else
          stored[k], lives[k] = written, ttl
        end
      end
      n = n + 1
      if retry > 0 then
        answers[n] = pack('<Bdddd', flags + 64, value, remaining, retry, reset)
      elseif wait > 0 then
        answers[n] = pack('<Bdddd', flags + 128, value, remaining, reset, wait)
      else
        answers[n] = pack('<Bddd', flags + 192, value, remaining, reset)
      end
      if instead then instead = flags == 1 end
    until true
    if reset then
      plan = instead
      if not joined then
        for i = 1, m, 3 do stored[held[i]], lives[held[i]] = held[i + 1], held[i + 2] end
        first, m, denied = nil, 0, false
      elseif not first then
        first, before = pos, n - 1
      end
      pos, k, what = pos + 32, next_k, next_what
    else
      plan = nil
      if first then pos, n, first, m = first, before, nil, 0 end
      if again then
        again = false
      else
        denied = false
        local next_pos, next_n
        if settles and not state then next_pos, next_n = settle_alone(pos, n, now, given, usual, stored, lives, answers) end
        if take_alone and not next_pos then
          next_n = n + 1
          next_pos, answers[next_n] = take_alone(blob, pos)
        end
        if next_pos then
          pos, n = next_pos, next_n
        else
          if not state then -- the loop decides the charge again after the functions for it were created
            k, what = unpack_at('<dd', blob, pos)
            break
          end
          pos, n = decide(pos, n)
        end
      end
      k, what = unpack_at('<dd', blob, pos)
    end
  end

  if k == 0 then break end

  -- What follows is executed only if there is a charge that the loop does not decide.

  local EXACT = 9007199254740992
  local STEP_BACK = 60000000
  local DAY = 86400000000
  local HOUR = 3600000000
  local MAX_TIME = 4503599627370496
  local TOKEN, WINDOW, SLIDING, LOG, LEAKY, GUARANTEED, SLOTS = 1, 2, 3, 4, 5, 6, 7

  local floor, max, min = math.floor, math.max, math.min
  local byte, sub, rep = string.byte, string.sub, string.rep

  -- Each function with_… creates the functions in its line. It is called with the first charge that needs them.
  local with_changed, same_scale, outlived, converted, take_converted, take_kept
  local with_pairs, take_guaranteed, take_sliding
  local with_logs, log_load, log_size, log_at, log_clamp, log_write, take_log
  local with_penalties, forgotten_at, denials_at, having, take_penalized, pack_denials, unpack_denials
  local with_groups, take_all
  local with_open, take_open

  -- A state is created with room for all of its fields, because a table that grows is copied. The phase of a state is that
  -- of its last charge.
  state = {} -- the current state of each key, or false if there is none
  local dirty = {} -- for each key whose state must be written, the limit that changed the state last
  local denied_logs = {} -- for each key of a log with a denial, the limit that denied last

  -- Steps (steps.go) ---------------------------------------------------------------------------------

  local function ceil_div(a, b) return -floor(-a / b) end

  -- elapsed returns the number of ticks of l from time at to time t, both in microseconds. It is negative if t
  -- is before at.
  local function elapsed(l, at, t)
    if l.tick == 1 then return t - at end
    return floor(t / l.tick) - floor(at / l.tick)
  end

  -- span returns the time from t until the start of a later tick. ticks is the distance of that tick from the
  -- one that contains t. It is 0 if ticks is at most 0.
  local function span(l, t, ticks) return ticks > 0 and ticks * l.tick - t % l.tick or 0 end

  -- window_of returns the number of the window in which t lies. Of a calendar, only the windows in ARGV[2] are
  -- known: a time before them gets the number l.first - 1, and each later time gets the number of the last one.
  local function window_of(l, phase, t)
    if not l.edges then return floor((floor(t / l.tick) - phase) / l.period) end
    local n = 0
    while n < #l.edges and t >= l.edges[n + 1] do n = n + 1 end
    return l.first + n - 1
  end

  -- calendar_start returns the start of a window; 0 for a window before the given ones, which is at least two
  -- windows ago, and infinity for a window after them.
  local function calendar_start(l, window)
    if window < l.first then return 0 end
    return l.edges[window - l.first + 1] or math.huge
  end

  -- calendar_time returns the time from now until the n-th window start; the start of the next window is the first.
  -- If the script did not receive that window, the result may be too long, but never too short.
  local function calendar_time(l, n)
    local start = calendar_start(l, l.window + n)
    if start < math.huge then return start - now end
    return l.edges[5] - now + (l.window + n - l.first - 4) * l.longest
  end

  -- until_step returns the time from t until the start of the n-th step from then: a window or a tick. For a calendar it
  -- returns a number of windows, which the sidecar converts to a time.
  local function until_step(l, phase, t, n)
    if l.kind ~= WINDOW then return span(l, t, n) end
    if n <= 0 then return 0 end
    if l.edges then return window_of(l, 0, t) - l.window + n end
    return (phase + (window_of(l, phase, t) + n) * l.period) * l.tick - t
  end

  -- at_most is until_step. For a calendar it returns a time from now, in which each window after the next two counts as
  -- the longest possible one.
  local function at_most(l, phase, t, n)
    if l.edges then return calendar_time(l, window_of(l, 0, t) - l.window + n) end
    return until_step(l, phase, t, n)
  end

  -- locate stores the number of the calendar window that contains s.at, and the start of the next window, in s.
  -- They cannot be computed later, when the calendar is unknown.
  local function locate(l, s)
    if l.edges then
      s.window = window_of(l, 0, s.at)
      s.next = calendar_start(l, s.window + 1)
    end
    return s
  end

  -- Levels (level.go) --------------------------------------------------------------------------------

  -- beyond reports whether a is a settlement that charges units beyond the estimate.
  local function beyond(l, a) return l.settles and a.settle and a.cost > 0 and not a.raw end

  -- give_back returns the units that a refund of cost, which is negative, adds: at most what a bucket can lack in exact
  -- numbers. The bucket of a window has no more than that, and a guaranteed bucket has no debt.
  local function give_back(l, cost)
    if l.kind == WINDOW then return min(-cost, EXACT) end
    return min(-cost, l.kind == TOKEN and floor((EXACT - l.p) / l.q) or l.capacity)
  end

  -- flow returns value after e ticks, in each of which p flows in, up to full.
  local function flow(value, full, p, e)
    if e >= -floor((value - full) / p) then return full end
    return value + e * p
  end

  -- cost_in returns the cost of a in 1/q unit of the limit. It is limited to a little more than the largest cost that can
  -- ever be allowed, and a refund as by give_back, so that later computations stay exact.
  local function cost_in(l, a)
    local most = l.capacity + l.max_reserved
    if a.cost < 0 then return a.raw and max(-give_back(l, -EXACT) * l.q, a.cost) or -give_back(l, a.cost) * l.q end
    if a.raw then return min(a.cost, most * l.q + 1) end
    if a.cost > most then return most * l.q + 1 end
    return a.cost * l.q
  end

  -- inflow_in returns the least that flows in during a time of this length, at most 2^53.
  local function inflow_in(l, time)
    return flow(0, EXACT, l.p, floor(time / (l.longest or (l.kind == WINDOW and l.period or 1) * l.tick)))
  end

  -- returned returns refund, less an inflow of p in each of ticks, and at least 0. It is 0 if ticks is below 0.
  local function returned(refund, p, ticks)
    if ticks < 0 or ticks >= ceil_div(refund, p) then return 0 end
    return refund - ticks * p
  end

  -- refund_of returns how much of given, in 1/q unit, the refund a adds at time t. If a corrects a charge at the time a.of,
  -- that is given less what has flowed in since; or at most what the peaks allow, if l settles; and nothing after the
  -- window of the charge has ended. room is how far the bucket is below full.
  local function refund_of(l, phase, s, peaks, given, room, t, a)
    if a.of <= 0 then
      return given
    elseif l.kind == WINDOW and window_of(l, phase, a.of) ~= window_of(l, phase, t) then
      return 0
    elseif l.settles then
      return min(given, room_since(l, s.at, peaks, 1, a.of, room))
    elseif l.kind == WINDOW then
      return given
    end
    return returned(given, l.p + l.p1, elapsed(l, a.of, t))
  end

  -- charges_denied reports whether l charges a even if it is denied: no reservation, and nothing that is free.
  local function charges_denied(l, a) return l.charges_denied and not a.free and (not a.reserve or a.settle) end

  local function takes_denied(l, a) return l.takes_denied and charges_denied(l, a) end

  -- await sets d.wait, the time until the turn in a leaky bucket or until reserved units are there. If a does not accept
  -- the wait, await denies the charge. retry is the number of steps until the level allows the cost, and 0 if it does now.
  local function await(l, phase, had, cost, retry, t, a, d, lag)
    local wait = ceil_div((l.kind == LEAKY and l.v or cost) - had, l.p)
    if wait <= 0 then return end
    if a.max_wait > 0 then
      local early = at_most(l, phase, t, wait) - a.max_wait
      if cost - l.v > inflow_in(l, a.max_wait) then
        d.allowed, d.never, d.retry = false, true, 0
      elseif early + (d.timed and lag or 0) > 0 then
        -- The times of a calendar are counted in windows. A number below 0 is a time.
        if retry == 0 or at_most(l, phase, t, retry) < early then d.retry = d.timed and early or -early end
        d.allowed = false
      end
    end
    if d.allowed then d.wait = until_step(l, phase, t, wait) end
  end

  -- take_level is take for token buckets, fixed windows and leaky buckets. lag is how far the clock is behind t, after it
  -- has stepped back.
  local function take_level(l, phase, s, t, a, d, lag)
    local cost, steps = cost_in(l, a), elapsed(l, s.at, t)
    if l.kind == WINDOW then steps = window_of(l, phase, t) - (s.window or window_of(l, phase, s.at)) end
    local had = flow(s.value, l.v, l.p, steps)
    local least, given, peaks = a.reserve and -l.max_reserved * l.q or 0, nil, l.settles and s.peaks or nil
    if cost < 0 then
      given = refund_of(l, phase, s, peaks, -cost, l.v - had, t, a)
    elseif beyond(l, a) then
      least, d.lost = charged(l, had, a.cost)
      cost = had - least
    end
    local flags, value, remaining, retry, reset =
      charge_level(l, l.p, l.q, l.v, had, 0, cost, least, given, not charges_denied(l, a))
    d.allowed, d.never, d.retry = flags == 1, flags == 2, until_step(l, phase, t, retry)
    local may_wait = (a.reserve or l.kind == LEAKY) and a.cost >= 0 and not beyond(l, a)
    if may_wait and (d.allowed or a.max_wait > 0 and not d.never) then
      await(l, phase, had, cost, retry, t, a, d, lag)
      if not d.allowed then
        local _
        _, value, remaining, _, reset = charge_level(l, l.p, l.q, l.v, had, 0, 0, -EXACT)
      end
    end
    if l.settles then peaks = peaked(l, peaks, 1, t, l.v - had, l.v - value, a.of) end
    if l.kind == WINDOW then reset = max(1, reset) end
    d.value, d.remaining, d.reset = value, remaining, until_step(l, phase, t, reset)
    return locate(l, { by = l, value = value, prev = 0, at = t - t % l.tick, phase = 0, peaks = peaks })
  end

  -- One charge (algorithms.go) -----------------------------------------------------------------------

  local function clear(l, d)
    d.allowed, d.never, d.retry, d.wait, d.value, d.remaining, d.reset = false, false, 0, 0, 0, 0, 0
    d.blocked, d.lost, d.timed = 0, 0, not l.edges
  end

  -- later makes every waiting time in d longer by lag, the time that a clock needs to catch up after it stepped back.
  local function later(d, lag)
    if not d.allowed and not d.never then d.retry = d.retry + lag end
    if d.reset > 0 then d.reset = d.reset + lag end
    if d.wait > 0 then d.wait = d.wait + lag end
  end

  -- keep returns the state to store after a decision that charges nothing: s or kept. kept is s with its clock
  -- started or corrected.
  local function keep(l, s, kept, seen, dry_run)
    if (seen and dry_run) or (not seen and l.initial >= l.capacity) then return s end
    return kept
  end

  -- fresh returns the state of a new bucket at time t. It keeps log, because log contains which entries are
  -- stored in Redis.
  local function fresh(l, t, log)
    local s = { by = l, value = 0, prev = 0, at = t - t % l.tick, log = log, phase = 0, peaks = l.settles and '' or nil }
    if l.kind == SLIDING or l.kind == LOG then return s end
    s.value, s.prev = l.v - (l.capacity - l.initial) * l.q, l.v1
    return locate(l, s)
  end

  -- with returns a copy of s with other denials, peaks and sums of open reservations.
  local function with(s, denials, peaks, open)
    return {
      by = s.by, value = s.value, prev = s.prev, at = s.at, log = s.log, phase = s.phase, window = s.window, next = s.next,
      period = s.period, denials = denials, peaks = peaks, open = open,
    }
  end

  -- full_at returns the moment from which s is completely full if nothing more is charged.
  local function full_at(l, s, phase)
    if l.kind == SLIDING then
      local e = s.at % s.period
      if s.value > 0 then return s.at + 2 * s.period - e end
      return s.prev > 0 and s.at + s.period - e or s.at
    end
    if l.kind == GUARANTEED then
      return s.at + span(l, s.at, max(ceil_div(l.v - s.value, l.p), ceil_div(l.v1 - s.prev, l.p1)))
    elseif l.kind == LOG then
      return log_size(s.log) > 0 and s.at + l.period or s.at
    end
    local n = ceil_div(l.v - s.value, l.p)
    if l.edges and n > 0 then return calendar_start(l, s.window + n) end
    return s.at + until_step(l, phase, s.at, n)
  end

  -- begin prepares s, the stored state or nil, for a decision of l at time t. It returns the state, the time at
  -- which to decide, and whether the bucket was stored before. A state with other numbers than l keeps them, but a
  -- balance is converted at once, and counts as not stored. If the clock was set back, the returned time or the state is
  -- adjusted, as by Limit.start.
  local function begin(l, phase, s, t)
    if not s or (l.kind == LOG and log_size(s.log) == 0) then return fresh(l, t, s and s.log), t, false end
    if s.by ~= l and not take_kept then with_changed() end
    local at = t
    if t < s.at then
      if s.at - t <= STEP_BACK then
        at = s.at
      else
        local till = min(s.at, t + HOUR - (t + HOUR) % s.by.tick) + s.by.tick
        s = with(s, s.denials, l.settles and push('', 1, till, 0) or nil, s.open)
        s.at = t - t % s.by.tick
        if l.calendar == s.by.calendar then
          locate(l, s)
        elseif s.by.calendar then
          s.by, s.phase = outlived(s)
        end
        if s.log then log_clamp(s.log, t) end
      end
    end
    if s.by ~= l then
      if same_scale(l, phase, s) then
        s.by, s.phase = l, phase
      elseif l.initial < l.capacity then
        return converted(l, phase, s, at), at, false
      end
    end
    if l.initial < l.capacity and s.by == l and not s.denials and not s.open and at - s.at > DAY - l.tick and at >= full_at(l, s, phase) + DAY then
      return fresh(l, at), at, false
    end
    return s, at, true
  end

  -- take decides the charge a of a bucket in state s at the time now, and returns the next state. It stores
  -- the decision in d: allowed, never, value, remaining, retry, reset, wait, blocked, lost, and timed, which is false
  -- if the times are counted in windows. take ignores penalties; take_counted adds them.
  local function take(l, phase, s, a, d, dry_run)
    clear(l, d)
    if l.rate == 0 then
      d.allowed, d.never = a.cost <= 0, a.cost > 0
      return s
    end
    if l.kind == SLOTS then
      take_slot(s.key, l, a, d, dry_run)
      return s
    end
    if l.open_for and not a.in_open then
      if not take_open then with_open() end
      return take_open(l, phase, s, a, d, dry_run)
    end
    local kept, at, seen = begin(l, phase, s, now)
    local is, next, full = kept
    if kept.by ~= l then
      next, full = take_converted(l, phase, kept, at, a, d, dry_run)
      if full then is = next elseif next then return dry_run and s or next end
    end
    if is.by ~= l then
      next = take_kept(l, phase, is, at, a, d, at - now)
    elseif l.kind <= WINDOW or l.kind == LEAKY then
      next = take_level(l, phase, is, at, a, d, at - now)
    elseif l.kind == GUARANTEED then
      if not take_guaranteed then with_pairs() end
      next = take_guaranteed(l, is, at, a, d)
    elseif l.kind == SLIDING then
      if not take_sliding then with_pairs() end
      next = take_sliding(l, is, at, a, d)
    else
      next = take_log(l, is, at, a, d, dry_run)
    end
    if a.settle and a.cost == 0 then d.allowed, d.retry = true, 0 end
    if at > now and d.timed then later(d, at - now) end
    if d.never and not takes_denied(l, a) then return s end
    if a.cost < 0 and not seen and l.initial >= l.capacity then return s end
    if a.cost ~= 0 and not dry_run and (d.allowed or charges_denied(l, a)) then return next end
    return keep(l, s, kept, seen, dry_run or (a.free and not d.allowed))
  end

  -- take_counted is take for a limit that may have a penalty, and for a state that may have denials.
  local function take_counted(l, phase, s, a, d, dry_run)
    if l.after == 0 and not (s and s.denials) then return take(l, phase, s, a, d, dry_run) end
    if not take_penalized then with_penalties() end
    return take_penalized(l, phase, s, a, d, dry_run)
  end

  -- kept_of returns the state to store in place of s if the charge a is not made, because another bucket of the group has
  -- denied, or because a penalty blocks it.
  local function kept_of(l, phase, s, a)
    if l.rate == 0 or l.kind == SLOTS then return s end
    local is, dry_run, denials = s, a.dry_run or a.free, s and s.denials
    if denials then is = having(s, denials_at(l, s)) end
    local kept, _, seen = begin(l, phase, is, now)
    kept = keep(l, is, kept, seen, dry_run)
    if not denials then return kept elseif not dry_run then return having(kept, is.denials) end
    return kept == is and s or having(kept, denials)
  end

  -- The buckets --------------------------------------------------------------------------------------

  -- load reads the state of key k, or returns false if there is none. It compares the numbers of the state with
  -- those of l at once, so that usually nothing must be converted.
  local function load(k, l, phase)
    local s = state[k]
    if s ~= nil then return s end
    if l.kind == LOG then
      if not log_load then with_logs() end
      local log = log_load(names[k])
      local n = log_size(log)
      s = { by = l, value = 0, prev = 0, at = n > 0 and log_at(log, n) or 0, log = log }
      if log.denials then
        if not unpack_denials then with_penalties() end
        s.denials = unpack_denials(log.denials, 2)
      end
    elseif l.kind == SLOTS then
      s = { key = k } -- the state is in with_slots
    else
      local b, last = stored[k]
      if not b then
        state[k] = false
        return false
      end
      for at = 2, #b, 8 do -- with other numbers, such as infinity, a loop might never end
        local n = unpack_at('<d', b, at)
        if not (n >= -EXACT and n <= EXACT) then error('a value in Redis is not a bucket') end
      end
      local kind, tick, calendar = l.kind, byte(b) == 1 and 1000 or 1, byte(b) == 2
      if kind == SLIDING then
        local count, prev, at, period = unpack_at('<dddd', b, 2)
        s, last = { by = l, value = count, prev = prev, at = at, period = period }, 42
      else
        local form = kind == WINDOW and (calendar and '<ddddddd' or '<dddddd') or kind == GUARANTEED and '<dddddddd' or '<ddddd'
        local value, at, p, q, v, p1, v1, more = unpack_at(form, b, 2)
        s, last = { by = l, value = value, prev = 0, at = at, phase = phase }, 8 * #form - 6
        if calendar then
          local rate, capacity, window, hours = p, q, p1, v1 % 1000000
          s.phase, s.window, s.next = 0, window, v1 - hours
          if l.calendar ~= v or l.rate ~= rate or l.capacity ~= capacity then
            s.by = {
              kind = WINDOW, tick = 1, rate = rate, capacity = capacity, calendar = v, longest = hours * HOUR, p = rate, q = 1,
              v = capacity,
            }
          end
        elseif kind == WINDOW then
          local rate, period = p, q
          s.phase = p1
          if l.rate ~= rate or l.period ~= period or l.capacity ~= v or phase ~= p1 or l.tick ~= tick or l.edges then
            s.by = { kind = WINDOW, tick = tick, rate = rate, period = period, capacity = v, p = rate, q = 1, v = v }
          end
        else
          if kind == GUARANTEED then s.prev, s.at, p, q, v, p1, v1 = at, p, q, v, p1, v1, more else p1, v1 = 0, 0 end
          if l.p ~= p or l.q ~= q or l.v ~= v or l.p1 ~= p1 or l.v1 ~= v1 or l.tick ~= tick then
            s.by = { kind = kind, tick = tick, p = p, q = q, v = v, p1 = p1, v1 = v1 }
          end
        end
      end
      if last <= #b then
        local mark = unpack_at('<d', b, last)
        if mark == -2 then
          local to = last + 16 + 24 * unpack_at('<d', b, last + 8)
          s.open, last = { unpack_at('<' .. rep('d', (to - last - 16) / 8), b, last + 16) }, to
          s.open[#s.open] = nil -- the position behind them
          mark = last <= #b and unpack_at('<d', b, last)
        end
        if mark == -1 then
          s.peaks = sub(b, last + 8)
        elseif mark then
          if not unpack_denials then with_penalties() end
          s.denials = unpack_denials(b, last)
        end
      end
    end
    state[k] = s
    return s
  end

  -- remember keeps s, the next state of the bucket of c, for later charges of the same call and for writing. If same is
  -- true, the decision changes nothing but the clock of a new bucket.
  local function remember(c, s, same)
    if s and s ~= state[c.key] then
      if s.by == c.limit then s.phase = c.phase end -- else the state keeps the phase of an earlier limit
      state[c.key], dirty[c.key] = s, c.limit
    elseif s and s.log and not same then
      denied_logs[c.key] = c.limit
    end
    -- The stored period never gets shorter: a longer one may still need the counts.
    if s and c.limit.kind == SLIDING and not same then
      local period = c.limit.period * c.limit.tick
      if not s.period or s.period < period then s.period, dirty[c.key] = period, c.limit end
    end
  end

  -- take_one decides the charge c alone, stores the decision in c, and keeps the next state for writing.
  local function take_one(c)
    local s = take_counted(c.limit, c.phase, load(c.key, c.limit, c.phase), c, c, c.dry_run)
    remember(c, s, c.dry_run or (c.free and not c.allowed))
  end

  -- lifetime returns the time in ms that s, the state after a charge of l, must live: until it equals a
  -- bucket that was never seen.
  local function lifetime(l, s)
    local by, fresh_at = s.by
    if not by.calendar then
      fresh_at = full_at(by, s, s.phase)
    else
      local n = ceil_div(by.v - s.value, by.p)
      fresh_at = s.next + max(0, n - 1) * by.longest
      if by.calendar == l.calendar then fresh_at = now + calendar_time(l, s.window + n - l.window) end
    end
    if l.initial < l.capacity then fresh_at = fresh_at + DAY end
    if s.denials then fresh_at = max(fresh_at, forgotten_at(l, s.denials)) end
    local peaks, open = s.peaks, s.open
    if open and l.open_for then fresh_at = max(fresh_at, open[#open - 2] + l.open_for + ceil_div(l.open_for, 16)) end
    if peaks and peaks ~= '' then fresh_at = max(fresh_at, unpack_at('<d', peaks, #peaks - 7)) end
    local ttl = max(0, floor((fresh_at - now) / 1000)) + 2
    if given then ttl = max(ttl, DAY / 1000) end -- keys expire by the server's clock, not by the given time
    return ttl
  end

  -- save prepares the state of key k for writing: it converts the state to bytes, and determines its lifetime.
  local function save(k)
    local s = state[k]
    local l = s.by
    local kind, ms, b = l.kind, l.tick == 1 and 0 or 1
    if kind == TOKEN or kind == LEAKY then
      b = pack('<Bddddd', ms, s.value, s.at, l.p, l.q, l.v)
    elseif l.calendar then
      -- Calendar windows start at whole seconds. So the microseconds of the next start have room for the length of
      -- the longest window in hours.
      local hours = ceil_div(l.longest, HOUR)
      b = pack('<Bddddddd', 2, s.value, s.at, l.rate, l.capacity, l.calendar, s.window, s.next + hours)
    elseif kind == WINDOW then
      b = pack('<Bdddddd', ms, s.value, s.at, l.rate, l.period, l.capacity, s.phase)
    elseif kind == SLIDING then
      b = pack('<Bddddd', 4, s.value, s.prev, s.at, s.period, 0)
    else
      b = pack('<Bdddddddd', ms, s.value, s.prev, s.at, l.p, l.q, l.v, l.p1, l.v1)
    end
    if s.denials then b = b .. pack_denials(s.denials) end
    if s.open then b = b .. pack('<dd' .. rep('d', #s.open), -2, #s.open / 3, unpack(s.open)) end
    if s.peaks then b = b .. pack('<d', -1) .. s.peaks end -- the first double of denials is never below 0
    stored[k], lives[k] = b, lifetime(dirty[k], s)
  end

  -- Limits that settle by bucket (open.go). The sums of a state are a table with since, count and units of each, oldest
  -- first, or nil. A table is replaced, never changed. The functions set now to decide at a later time.
  function with_open()
    local function open_end(l, since) return since + ceil_div(l.open_for, 16) + l.open_for end

    -- open_with returns the numbers list[from..to], and then a sum, if it has reservations.
    local function open_with(list, from, to, since, count, units)
      local next, n = {}, 0
      for i = from, to do n, next[n + 1] = n + 1, list[i] end
      if count > 0 then next[n + 1], next[n + 2], next[n + 3] = since, count, units end
      return #next > 0 and next or nil
    end

    local function opened(s, open) return s and with(s, s.denials, s.peaks, open) end

    -- expire_open returns s after the refunds of the sums that have expired by time t.
    local function expire_open(l, phase, s, t)
      local is = now
      while s and s.open and open_end(l, s.open[1]) <= t do
        local open = s.open
        now = max(s.at, open_end(l, open[1]))
        s = take(l, phase, s, { cost = -open[3], of = open[1], max_wait = 0, settle = true, in_open = true }, {})
        s = opened(s, open_with(open, 4, #open, 0, 0, 0))
      end
      now = is
      return s
    end

    -- close_open returns the sums after the charge a, and makes a the charge or refund of the difference.
    local function close_open(open, a)
      local n, since, count, units, taken = open and #open or 0, 0, 0, 0, 0
      if n > 0 then since, count, units = open[n - 2], open[n - 1], open[n] end
      if count > 0 and not a.settle then
        taken = min(units, -a.cost)
      elseif count > 0 then
        taken = count == 1 and units or floor(units / count)
      end
      if a.settle then a.cost, a.of = max(0, a.cost) - taken, since else a.cost = -taken end
      return open_with(open, 1, n - 3, since, count - 1, units - taken)
    end

    -- add_open returns the sums with a reservation of units at time t.
    local function add_open(l, open, t, units)
      local n = open and #open or 0
      if n > 0 and t < open[n - 2] + ceil_div(l.open_for, 16) then
        return open_with(open, 1, n - 3, open[n - 2], open[n - 1] + 1, min(open[n] + units, EXACT))
      elseif n == 51 then
        return open
      end
      return open_with(open, 1, n, t, 1, units)
    end

    -- retry_open returns the time until the charge a is allowed, if that is earlier than retry because reservations expire.
    local function retry_open(l, phase, s, a, retry)
      local is, d = now, {}
      while s and s.open do
        local wait = open_end(l, s.open[1]) - is
        if retry <= wait then break end
        s = expire_open(l, phase, s, is + wait)
        now = is + wait
        take(l, phase, s, a, d, true)
        now, retry = is, wait + d.retry
      end
      return retry
    end

    function take_open(l, phase, stored_s, a, d, dry_run)
      local s = expire_open(l, phase, stored_s, now)
      local open, closes, after = s and s.open or nil, a.open and (a.settle or a.cost < 0)
      local cost, inner = a.cost, {
        cost = a.cost, of = a.of, max_wait = a.max_wait, settle = a.settle, raw = a.raw, reserve = a.reserve, free = a.free,
        in_open = true,
      }
      if closes then after = close_open(open, inner) end
      local next = take(l, phase, s, inner, d, dry_run)
      if not d.allowed and not d.never then
        d.retry = retry_open(l, phase, s, inner, d.retry)
      elseif d.allowed and not dry_run and closes then
        return opened(next, after)
      elseif d.allowed and not dry_run and a.open and cost > 0 then
        return opened(next, add_open(l, open, next.at, cost))
      end
      return next == s and stored_s or opened(next, open)
    end
  end

  -- States with other numbers than the limit of the charge (changed.go).
  function with_changed()
    -- most_of_windows returns the largest exact capacity + max_reserved of a fixed window with this rate.
    -- longest is the length of its longest window.
    local function most_of_windows(rate, longest)
      local windows, most = floor((EXACT - MAX_TIME) / longest) - 1, EXACT - rate
      if windows <= floor(most / rate) then return windows * rate end
      return most
    end

    -- mul_div returns a*b/c, rounded down and limited to 2^53, and the remainder. All remainders stay in the exact range:
    -- it builds the quotient and the remainder from the bits of a, the highest first.
    local function mul_div(a, b, c)
      if b == c then return a, 0 end
      local whole, part, quotient, rest = floor(b / c), b % c, 0, 0
      local _, bits = math.frexp(a)
      local bit = 2 ^ (bits - 1)
      while bit >= 1 do
        quotient, rest = quotient * 2, rest * 2
        if rest >= c then quotient, rest = quotient + 1, rest - c end
        if a >= bit then
          a, quotient, rest = a - bit, quotient + whole, rest - (c - part)
          if rest >= 0 then quotient = quotient + 1 else rest = rest + c end
        end
        bit = bit / 2
      end
      if quotient >= EXACT then return EXACT, 0 end
      return quotient, rest
    end

    -- mul_div_ceil returns a*b/c, rounded up and limited to 2^53.
    local function mul_div_ceil(a, b, c)
      local n, rest = mul_div(a, b, c)
      return rest > 0 and n + 1 or n
    end

    -- same_windows reports whether l has the windows of s. The usual length of the windows of a calendar is not stored
    -- in a state, so it is not compared.
    local function same_windows(l, phase, s)
      local old = s.by
      return l.calendar == old.calendar and (l.calendar or (l.period == old.period and phase == s.phase))
    end

    -- same_scale reports whether the values of s mean the same under the numbers of l as under those with which s
    -- was written. Then s needs no conversion.
    function same_scale(l, phase, s)
      local old = s.by
      if l.kind == WINDOW then
        return l.tick == old.tick and l.rate == old.rate and l.capacity == old.capacity and same_windows(l, phase, s)
      elseif l.kind == SLIDING or l.kind == LOG then
        return true
      end
      return l.tick == old.tick and l.p == old.p and l.q == old.q and l.v == old.v
        and l.p1 == old.p1 and l.v1 == old.v1
    end

    -- outlived returns numbers for s if the calendar of s is unknown, and the phase: its windows have the length of the
    -- longest possible window, and one of them starts at s.next.
    function outlived(s)
      local old, longest = s.by, s.by.longest
      return {
        kind = WINDOW, tick = 1, rate = old.rate, period = longest, capacity = old.capacity, p = old.rate, q = 1, v = old.v,
      }, s.next % longest
    end

    local function after(k, ticks)
      if ticks >= ceil_div(k.used, k.p) then return 0 end
      return k.used - ticks * k.p
    end

    -- kept_tokens returns the consumption of a token bucket, or of one part of a guaranteed bucket, at time t.
    -- value is what the bucket held at s.at, full is what it can hold, and p flows in with each tick; all three
    -- are in the numbers of s.by. The result counts in ms if l or s.by counts in ms, and otherwise in us.
    local function kept_tokens(l, s, value, full, p, t)
      local old = s.by
      local k = {
        old = old, unit = old.q, most = floor((EXACT - old.p - old.p1) / old.q), used = full - value, p = p,
        tick = max(l.tick, old.tick),
      }
      if k.tick ~= old.tick then
        k.used = min(k.used + p * (s.at % k.tick), EXACT)
        k.p = min(p * (k.tick / old.tick), EXACT)
      end
      k.used = after(k, floor(t / k.tick) - floor(s.at / k.tick))
      k.now = t - t % k.tick
      return k
    end

    -- kept_window returns the consumption of a fixed window at time t, in the numbers of s.by.
    local function kept_window(l, s, t)
      local old, phase, k = s.by, s.phase
      if old.calendar and old.calendar == l.calendar then
        k = { old = old, most = most_of_windows(old.rate, l.longest), phase = 0, edges = true }
        k.window = window_of(l, 0, t)
        k.n = k.window - s.window
      else
        if old.calendar then old, phase = outlived(s) end
        k = { old = old, most = most_of_windows(old.rate, old.period), phase = phase, window = window_of(old, phase, t) }
        k.n = k.window - window_of(old, phase, s.at)
      end
      k.unit, k.now, k.used = 1, t, old.capacity - s.value
      if k.n > 0 then
        if l.clears or k.n >= ceil_div(k.used, old.rate) then k.used = 0 else k.used = k.used - k.n * old.rate end
      end
      return k
    end

    -- consumed returns the consumption of a bucket at time t. Of a guaranteed bucket it is that of the bank.
    local function consumed(l, s, t)
      if l.kind == WINDOW then return kept_window(l, s, t) end
      return kept_tokens(l, s, s.value, s.by.v, s.by.p, t)
    end

    -- units returns k.used in the unit of l, rounded up.
    local function units(k, l) return mul_div_ceil(k.used, l.q, k.unit) end

    -- of converts n, in the unit of l, to the unit of k, rounded down.
    local function of(k, l, n) return (mul_div(n, k.unit, l.q)) end

    local function ticks_to(k, bound) return max(0, ceil_div(k.used - bound, k.p)) end

    -- until_used returns the time from t until k.used does not exceed bound, which is in the unit of k.used. If k has a
    -- calendar, the result is a number of windows.
    local function until_used(k, l, t, bound)
      if l.kind ~= WINDOW then return max(0, ticks_to(k, bound) * k.tick - (t - k.now)) end
      local n = ceil_div(k.used - bound, k.old.rate)
      if l.clears then n = min(n, 1) end
      n = max(1, n)
      if k.edges then return k.window - l.window + n end
      return (k.phase + (k.window + n) * k.old.period) * k.old.tick - t
    end

    -- until_units returns the time from t until the consumption does not exceed bound, which is in the unit of l.
    local function until_units(k, l, t, bound) return until_used(k, l, t, of(k, l, bound)) end

    local function given_units(k, l, p, a)
      local n = min(-a.cost, EXACT)
      local given = a.raw and of(k, l, n) or min(n, k.most) * k.unit
      if a.of > 0 and l.settles then
        return min(given, k.room)
      elseif a.of > 0 and k.tick then
        return returned(given, p, floor(k.now / k.tick) - floor(a.of / k.tick))
      end
      return given
    end

    -- peaks_of returns the peaks of s that l can use; nil: none.
    local function peaks_of(l, phase, s)
      local old = s.by
      if not l.settles or l.tick ~= old.tick or l.kind == WINDOW and not same_windows(l, phase, s) then return nil end
      return s.peaks
    end

    -- adopt_peaks returns the peaks of s, converted to the numbers of l; nil: they are unknown.
    local function adopt_peaks(l, phase, s)
      local peaks = peaks_of(l, phase, s)
      if not peaks or l.kind == WINDOW then return peaks end
      local next, at = '', 1
      while at <= #peaks do
        local room, till
        room, till, at = unpack_at('<dd', peaks, at)
        next = push(next, 1, till, (mul_div(room, l.q, s.by.q)))
      end
      return next
    end

    -- balance converts value from the given unit to that of l, rounded down and at most full. A debt that the numbers of
    -- l cannot express becomes the largest that they can.
    local function balance(l, value, unit, full)
      if value < 0 then
        local most = l.kind == WINDOW and most_of_windows(l.rate, l.longest or l.period)
          or l.kind == TOKEN and floor((EXACT - l.p) / l.q)
        return max(-mul_div_ceil(-value, l.q, unit), -(most and most - l.capacity or 0) * l.q)
      end
      return min(full, (mul_div(value, l.q, unit)))
    end

    -- convert returns what a bucket of l with the consumption k holds. old and full are what it holds when full, in the
    -- old numbers and in those of l.
    local function convert(l, k, old, full)
      if l.initial < l.capacity then return balance(l, old - k.used, k.unit, full) end
      return full - units(k, l)
    end

    -- converted returns s, which has other numbers than l, as a state of l at time t, and the largest consumption in units
    -- that s can express without a conversion. If a value is below 0, the conversion would lose consumption.
    function converted(l, phase, s, t)
      local k, peaks = consumed(l, s, t), adopt_peaks(l, phase, s)
      local c = {
        by = l, value = convert(l, k, k.old.v, l.v), prev = 0, at = t - t % l.tick, phase = 0, denials = s.denials,
        peaks = peaks, open = s.open,
      }
      if l.kind == GUARANTEED then c.prev = convert(l, kept_tokens(l, s, s.prev, s.by.v1, s.by.p1, t), s.by.v1, l.v1) end
      if l.initial < l.capacity and peaks and peaks ~= '' then
        c.peaks = push(peaks, 1, max(c.at, s.at + l.tick), max(0, balance(l, k.old.v, k.unit, l.v) - c.value))
      end
      return locate(l, c), k.most
    end

    -- take_converted decides the charge a on s, which has other numbers than l, at time t if that charge converts s: it is
    -- allowed, and the conversion loses no consumption. It then returns the next state, else nil. A reservation with
    -- max_wait that must wait converts nothing. A denied charge that is made converts s only if the old numbers cannot
    -- express it. Of a full bucket, take_converted decides nothing: it returns the converted state, and true.
    function take_converted(l, phase, s, t, a, d, dry_run)
      local c, most = converted(l, phase, s, t)
      if c.value == l.v and c.prev == l.v1 then return c, true end
      if a.cost == 0 or c.value < 0 or c.prev < 0 then return nil end
      local next = take(l, phase, c, a, d, dry_run)
      local waits = d.wait > 0 and a.reserve and a.max_wait > 0 and l.kind ~= LEAKY
      if not waits and (d.allowed or charges_denied(l, a) and l.capacity > most) then return next end
      clear(l, d)
      return nil
    end

    -- decide_kept decides the charge a on a token bucket, a fixed window or a leaky bucket whose state has other numbers
    -- than l. k is the consumption at time t, and lag is that of take_kept.
    local function decide_kept(l, k, t, a, d, lag)
      local unit, full = l.q, l.v
      local cost, r = cost_in(l, a), 0
      if a.reserve then r = l.max_reserved end
      local reach = max(0, min(l.max_reserved, k.most - l.capacity))
      local goal, late = full + r * unit - cost, false
      if l.kind == LEAKY then
        if cost == 0 then goal = EXACT end
        local used = units(k, l)
        local wait = span(l, t, ceil_div(used, l.p))
        late = a.max_wait > 0 and wait > 0 and wait + lag > a.max_wait
        if late and wait <= a.max_wait and used <= goal and cost >= 0 then
          d.retry = wait - a.max_wait
          return
        end
        if a.max_wait > 0 then goal = min(goal, inflow_in(l, a.max_wait)) end
        if cost == 0 and not late then d.wait = wait end
      elseif a.reserve and a.max_wait > 0 then
        goal = full - cost
        if goal + inflow_in(l, a.max_wait) >= 0 then goal = max(0, goal) end
      elseif a.reserve then
        goal = max(min(goal, full), full + reach * unit - cost)
      end
      if cost < 0 then
        local over = a.of > 0 and l.kind == WINDOW
          and window_of(k.edges and l or k.old, k.phase, a.of) ~= k.window
        if not over then k.used = k.used - min(k.used, given_units(k, l, k.p, a)) end
        d.allowed = true
      elseif beyond(l, a) then
        local most, had = (l.capacity + min(l.max_debt, k.most - l.capacity)) * k.unit, k.used
        local wanted = mul_div(min(a.cost, l.capacity + l.max_debt), k.unit, 1)
        k.used = min(max(had, most), had + wanted)
        d.allowed, d.lost = true, a.cost - floor((k.used - had) / k.unit)
      elseif cost == 0 and not late then
        local debt = max(of(k, l, goal), k.old.v) -- more consumption than this is a debt by the old numbers too
        d.allowed = k.used <= debt
        if not d.allowed then d.retry = until_used(k, l, t, debt) end
      elseif goal >= full and k.used <= of(k, l, goal) then
        k.used = k.used + mul_div_ceil(cost, k.unit, unit)
        d.allowed, d.wait = true, until_units(k, l, t, full)
      elseif charges_denied(l, a) then
        k.used = min(max(k.used, (l.capacity + reach) * k.unit), k.used + mul_div_ceil(cost, k.unit, unit))
        d.never = l.takes_denied and cost > full
        if not d.never then d.retry = until_units(k, l, t, max(0, goal)) end
      elseif cost > full + r * unit or goal < 0 then
        d.never = true
      else
        d.retry = until_units(k, l, t, goal)
      end
    end

    -- take_kept_pair is take_kept for a guaranteed bucket.
    local function take_kept_pair(l, s, t, a, d)
      local old = s.by
      local sure, bank = kept_tokens(l, s, s.prev, old.v1, old.p1, t), kept_tokens(l, s, s.value, old.v, old.p, t)
      local larger = mul_div(l.capacity, old.q, 1)
      local most = min(max(larger, old.v + old.v1), bank.most * bank.unit)

      -- left returns the number of units that are available after the given number of ticks of the old numbers, and what the
      -- parts then hold in the numbers of l.
      local function left(ticks)
        local used1, used2 = after(sure, ticks), after(bank, ticks)
        local v1, v2 = l.v1 - mul_div_ceil(used1, l.q, sure.unit), l.v - mul_div_ceil(used2, l.q, bank.unit)
        local n = floor((max(0, v1) + max(0, v2)) / l.q)
        if v1 < 0 or v2 < 0 then n = max(0, min(n, floor((most - used1 - used2) / bank.unit))) end -- a charge does not convert
        return n, v1, v2
      end

      -- enough_in returns the time from t until cost is available.
      local function enough_in(cost)
        local low, high = -1, max(ticks_to(sure, 0), ticks_to(bank, 0)) -- it is not available at low, but at high
        while low + 1 < high do
          local mid = low + floor((high - low) / 2)
          if left(mid) >= cost then high = mid else low = mid end
        end
        return high * bank.tick - (t - bank.now)
      end

      if a.cost < 0 then
        local given = given_units(bank, l, sure.p + bank.p, a)
        local part = min(given, bank.used)
        bank.used, sure.used = bank.used - part, max(0, sure.used - (given - part))
        d.allowed = true
      elseif a.cost > l.capacity then
        d.never = true
      else
        local n, v1 = left(0)
        d.allowed = n >= a.cost
        if d.allowed then
          local paid = min(mul_div_ceil(min(max(0, v1), a.cost * l.q), sure.unit, l.q), a.cost * sure.unit)
          sure.used, bank.used = sure.used + paid, bank.used + a.cost * bank.unit - paid
        else
          d.retry = enough_in(a.cost)
        end
      end
      local n, v1, v2 = left(0)
      d.value, d.remaining = v1 + v2, n
      d.reset = max(0, enough_in(l.capacity))
      return { by = old, value = old.v - bank.used, prev = old.v1 - sure.used, at = bank.now, phase = 0 }
    end

    -- take_kept decides the charge a on s, which has other numbers than l, at time t. lag is how far the clock is behind
    -- t, after it has stepped back. If l does not have the calendar of s, the decision has times instead of numbers of
    -- windows.
    function take_kept(l, phase, s, t, a, d, lag)
      if l.kind == GUARANTEED then return take_kept_pair(l, s, t, a, d) end
      local k = consumed(l, s, t)
      if l.kind == WINDOW then d.timed = not k.edges end
      local peaks, had = s.by == k.old and peaks_of(l, phase, s) or nil, k.used
      k.room = l.settles and room_since(k.old, s.at, peaks, 1, a.of, had)
      decide_kept(l, k, t, a, d, lag)
      if l.settles then peaks = peaked(k.old, peaks, 1, k.now, had, k.used, a.of) end
      d.value = l.v - units(k, l)
      d.remaining = max(0, floor(d.value / l.q))
      d.reset = until_units(k, l, t, 0)
      local next = {
        by = k.old, value = k.old.v - k.used, prev = 0, at = k.now - k.now % k.old.tick, phase = k.phase or 0,
        peaks = peaks,
      }
      if k.edges then locate(l, next) end
      return next
    end
  end

  -- Token buckets with a guaranteed minimum (guaranteed.go), and sliding window counters (sliding_counter.go).
  function with_pairs()
    function take_guaranteed(l, s, t, a, d)
      local e = elapsed(l, s.at, t)
      local v1, v2 = flow(s.prev, l.v1, l.p1, e), flow(s.value, l.v, l.p, e)
      if a.cost < 0 then
        local c = refund_of(l, 0, s, nil, give_back(l, a.cost) * l.q, 0, t, a)
        local bank = min(c, l.v - v2)
        v1, v2 = min(l.v1, v1 + c - bank), v2 + bank
        d.allowed = true
      elseif a.cost > l.capacity then
        d.never = true
      else
        local c = a.cost * l.q
        if v1 + v2 >= c then
          d.allowed = true
          local paid = max(0, min(v1, c)) -- v1 is below 0 if take_kept_pair charged the state for a larger limit
          v1, v2 = v1 - paid, v2 - (c - paid)
        else
          d.retry = span(l, t, max(ceil_div(c - v1 - v2, l.p1 + l.p), ceil_div(c - l.v1 - v2, l.p), ceil_div(c - v1 - l.v, l.p1)))
        end
      end
      d.value, d.remaining = v1 + v2, max(0, floor((v1 + v2) / l.q))
      d.reset = span(l, t, max(ceil_div(l.v1 - v1, l.p1), ceil_div(l.v - v2, l.p)))
      return { by = l, value = v2, prev = v1, at = t - t % l.tick, phase = 0 }
    end

    -- window_counts returns the counts, limited so that products stay in the exact range: a larger limit may have
    -- made counts above l.rate. The stored counts are not limited.
    local function window_counts(l, cur, prev)
      if cur <= l.rate and prev <= l.rate then return cur, prev end -- usual, and needs no calls
      local most = floor(EXACT / 3 / l.period)
      return min(cur, most), min(prev, most)
    end

    function take_sliding(l, s, t, a, d)
      local own, last = s.value, s.prev
      local tick = floor(t / l.tick)
      local e = tick % l.period
      local windows = floor(tick / l.period) - floor(floor(s.at / l.tick) / l.period)
      if windows == 1 then
        own, last = 0, own
      elseif windows ~= 0 then
        own, last = 0, 0
      end
      local cur, prev = window_counts(l, own, last)
      local cost, left = a.cost, l.period - e
      if cost < 0 and a.of > 0 and floor(floor(a.of / l.tick) / l.period) ~= floor(tick / l.period) then
        d.allowed = true
      elseif cost < 0 then
        local off = min(-cost, own)
        own, last = own - off, max(0, last - (-cost - off))
        cur, prev = window_counts(l, own, last)
        d.allowed = true
      elseif cost > l.rate then
        d.never = true
      elseif (cur + cost) * l.period + prev * left <= l.rate * l.period then
        own, cur = own + cost, cur + cost
        d.allowed = true
      else
        local room, ticks = l.rate - cur - cost, l.period
        if room >= 0 and prev > 0 then ticks = l.period - floor(room * l.period / prev) end
        if ticks == l.period and cur > 0 then -- in the next window, which counts cur as the previous count
          ticks = ticks + max(0, l.period - floor((l.rate - cost) * l.period / cur))
        end
        d.retry = span(l, t, ticks - e)
      end
      d.remaining = max(0, floor(((l.rate - cur) * l.period - prev * left) / l.period))
      d.value = d.remaining
      if cur > 0 then
        d.reset = span(l, t, left + l.period)
      elseif prev > 0 then
        d.reset = span(l, t, left)
      end
      return { by = l, value = own, prev = last, at = t - t % l.tick, phase = 0, period = s.period }
    end
  end

  -- Sliding logs (sliding_log.go). A log is a list of times, oldest first. It is read only where necessary and written at
  -- the end. log_write removes the units in Redis after number log.stored, appends the units in log.added, and removes
  -- the oldest log.first units. Denials of a penalty are stored before the times, as bytes that start with 'd'; log.head
  -- is then 1, else 0.
  function with_logs()
    function log_load(key)
      local n = call('LLEN', key)
      local oldest = n > 0 and call('LINDEX', key, 0)
      local head = oldest and byte(oldest) == 100 and 1 or 0
      n = n - head
      return {
        key = key, listed = n, stored = n, first = 0, added = {},
        head = head, denials = head == 1 and oldest, oldest = head == 0 and oldest,
      }
    end

    function log_size(log) return log.stored + #log.added - log.first end

    -- log_at returns the time of the i-th unit in log, the oldest first. It reads that time from Redis if
    -- necessary.
    function log_at(log, i)
      i = i + log.first
      if i > log.stored then return log.added[i - log.stored] end
      if i == 1 and log.oldest then return tonumber(log.oldest) end
      return tonumber(call('LINDEX', log.key, log.head + i - 1))
    end

    -- log_clamp changes the times after t in log to t. It is needed after a clock has stepped back.
    function log_clamp(log, t)
      local all = {}
      for i = 1, log_size(log) do all[i] = min(log_at(log, i), t) end
      log.first, log.stored, log.added = 0, 0, all
    end

    -- log_write writes the denials, if there are any, and log after them.
    function log_write(log, ttl, denials)
      local key, head = log.key, denials and 1 or 0
      if denials and log.head == 0 then
        call('LPUSH', key, denials)
      elseif denials and denials ~= log.denials then
        call('LSET', key, 0, denials)
      elseif log.head > head then
        call('LPOP', key)
      end
      if log_size(log) == 0 then log.first, log.stored, log.added = 0, 0, {} end
      if log.stored < log.listed then
        if head + log.stored > 0 then call('LTRIM', key, 0, head + log.stored - 1) else call('DEL', key) end
      end
      for i = 1, #log.added, 1000 do
        call('RPUSH', key, unpack(log.added, i, min(i + 999, #log.added)))
      end
      if log.first > 0 then
        call('LTRIM', key, log.first, -1)
        if denials then call('LSET', key, 0, denials) end
      end
      if head + log_size(log) > 0 then call('PEXPIRE', key, ttl) end
    end

    -- expired returns the number of units at the head of log that are at least one period old at time t.
    local function expired(l, log, t)
      local size, before = log_size(log), t - l.period
      if size == 0 or log_at(log, 1) > before then return 0 end
      local lo, hi = 1, size + 1 -- the unit at lo has expired, and the one at hi has not
      while lo + 1 < hi do
        local mid = floor((lo + hi) / 2)
        if log_at(log, mid) > before then hi = mid else lo = mid end
      end
      return lo
    end

    -- take_log is take for a sliding log.
    function take_log(l, s, t, a, d, dry_run)
      local log, cost, out = s.log, a.cost, expired(l, s.log, t)
      local n = log_size(log) - out
      local newest, back, from = n > 0 and log_at(log, out + n), 0, out + n -- a refund removes the units from - back + 1 to from
      if cost < 0 and a.of > 0 and a.of <= t - l.period then
        d.allowed = true
      elseif cost < 0 then
        while a.of > 0 and from > out and log_at(log, from) > a.of do from = from - 1 end
        back = min(from - out, -cost)
        if from == out + n then newest = n > back and log_at(log, from - back) end
        n = n - back
        d.allowed = true
      elseif cost > l.rate then
        d.never = true
      elseif n + cost <= l.rate then
        d.allowed = true
        n = n + cost
        if cost > 0 then newest = t end
      else
        d.retry = log_at(log, out + n + cost - l.rate) + l.period - t
      end
      d.remaining = max(0, l.rate - n)
      d.value = d.remaining
      if newest then d.reset = newest + l.period - t end
      if d.allowed and cost ~= 0 and not dry_run then
        if cost < 0 then -- removes these units and all newer ones, and adds the newer ones again
          local newer, size, added = {}, log_size(log), #log.added
          for i = from + 1, size do newer[i - from] = log_at(log, i) end
          local cut = size - from + back
          for i = added, max(1, added - cut + 1), -1 do log.added[i] = nil end
          log.stored = log.stored - max(0, cut - added)
          for i = 1, #newer do log.added[#log.added + 1] = newer[i] end
        end
        log.first = log.first + out
        for _ = 1, cost do log.added[#log.added + 1] = t end
      end
      return { by = l, value = 0, prev = 0, at = newest or 0, log = log, phase = 0 }
    end
  end

  -- Limits with a penalty, and states with denials (penalty.go). Denials are a table with the times of the denials since the
  -- last block, oldest first, the number of blocks in a row, and the end of the last one. A table is replaced, never changed.
  function with_penalties()
    -- block returns the duration of the k-th block in a row, in us: each is twice as long as the one before, up to
    -- longest_block.
    local function block(l, k) return min(l.block * 2 ^ (k - 1), l.longest_block) end

    -- forgotten_at returns the time from which on no denial counts.
    function forgotten_at(l, denials)
      local n, at = #denials, 0
      if n > 0 then at = denials[n] + l.period * l.tick end
      if denials.blocks > 0 then at = max(at, denials.till + (l.longest_block or 0)) end -- nil: a dry run keeps them
      return at
    end

    -- denials_at returns the denials of s that still count now; nil: none.
    function denials_at(l, s)
      local was = s and s.denials
      if not was or l.after == 0 then return nil end
      local n, last = #was, was.till - block(l, was.blocks)
      if n > 0 then last = max(last, was[n]) end
      last = max(last, s.at) -- 0 if s is an empty log
      local back = last - now
      if back > STEP_BACK then
        local moved = { blocks = was.blocks, till = was.till - back }
        for i = 1, n do moved[i] = was[i] - back end
        was = moved
      end
      if now >= forgotten_at(l, was) then return nil end
      return was
    end

    -- counted returns the earlier denials, was (nil: none), without those that no longer count at time t, and with
    -- one more at t. If they are then as many as start a block, it returns that block in their place, which begins
    -- at t.
    local function counted(l, was, t)
      local d = { blocks = 0, till = 0 }
      if was then
        if t < was.till + l.longest_block then d.blocks, d.till = was.blocks, was.till end
        local before = t - l.period * l.tick
        for i = 1, #was do
          if was[i] > before then d[#d + 1] = was[i] end
        end
        if #d > 0 then t = max(t, d[#d]) end
      end
      if #d + 1 < l.after then
        d[#d + 1] = t
        return d
      end
      local blocks = d.blocks
      if blocks == 0 or block(l, blocks) < l.longest_block then blocks = blocks + 1 end
      return { blocks = blocks, till = t + block(l, blocks) }
    end

    -- having returns a copy of s with other denials, and without peaks if there are any; s itself if it has these already.
    function having(s, denials)
      if not s or s.denials == denials then return s end
      return with(s, denials, not denials and s.peaks or nil)
    end

    -- blocked decides a on s, which a penalty blocks until the time till: the charge is denied, and the amounts in d
    -- are those of the bucket without the charge.
    local function blocked(l, phase, s, till, a, d)
      local free = a.free
      a.free = true -- a blocked request is not charged, also by a limit that charges denied ones
      take(l, phase, s, a, d, true)
      a.free = free
      if d.never then return end
      local own = d.retry
      take(l, phase, s, { cost = 0, max_wait = 0, of = 0 }, d, true)
      d.allowed, d.wait, d.blocked = false, 0, till - now
      d.retry = d.timed and max(own, d.blocked) or own
    end

    function take_penalized(l, phase, s, a, d, dry_run)
      local denials = denials_at(l, s)
      local at, is = now, having(s, denials)
      if s and at < s.at and s.at - at <= STEP_BACK then at = s.at end -- as in begin
      if denials and a.cost >= 0 and not (a.settle and a.cost == 0) and at < denials.till then
        blocked(l, phase, is, denials.till, a, d)
        if d.never then return s end
        return kept_of(l, phase, s, a)
      end
      local next = take(l, phase, is, a, d, dry_run)
      if dry_run or l.rate == 0 or (a.free and not d.allowed) or (d.never and not takes_denied(l, a)) then
        return next == is and s or having(next, s and s.denials)
      end
      if l.after > 0 and not d.allowed and not d.never and a.cost > 0 then
        denials = counted(l, denials, at)
        if at < denials.till then
          d.blocked = denials.till - now
          if d.timed then d.retry = max(d.retry, d.blocked) end
        end
      end
      return having(next, denials)
    end

    function pack_denials(denials)
      return pack('<dd' .. rep('d', #denials), denials.blocks, denials.till, unpack(denials))
    end

    function unpack_denials(b, at)
      local d = {}
      d.blocks, d.till, at = unpack_at('<dd', b, at)
      while at <= #b do d[#d + 1], at = unpack_at('<d', b, at) end
      return d
    end
  end

  -- Groups (take_all.go).
  function with_groups()
    -- alternatives returns the index of the alternative if a row starts at charges[at], and otherwise at.
    local function alternatives(charges, at, last)
      while at < last and charges[at].instead do at = at + 1 end
      return at
    end

    local function allow(charges, first, last)
      for i = first, last do
        if not charges[i].allowed then return false end
      end
      return true
    end

    -- look decides the charge a of the bucket of c as a dry run, and stores the decision in d.
    local function look(c, a, d) take_counted(c.limit, c.phase, load(c.key, c.limit, c.phase), a, d, true) end

    -- again returns the decision of a dry run of c with another cost, reserve and free.
    local function again(c, cost, reserve, free)
      local d = {
        cost = cost, reserve = reserve, free = free, max_wait = c.max_wait, of = c.of, raw = c.raw, settle = c.settle,
        open = c.open,
      }
      look(c, d, d)
      return d
    end

    -- peek decides a row and its alternative, charges[last], as dry runs. It returns whether either of them can be charged
    -- now, and whether neither can ever be charged. For a charge without a row, first equals last. If the row can be charged,
    -- peek replaces the cost of the alternative by its own.
    local function peek(charges, first, last)
      local never = false
      for i = first, last - 1 do
        local c = charges[i]
        look(c, c, c)
        never = never or (c.never and not takes_denied(c.limit, c))
      end
      local c = charges[last]
      if first < last and allow(charges, first, last - 1) then
        if not c.own then
          clear(c.limit, c)
          c.timed = true
          return true, false
        end
        c.cost, c.reserve = c.own, c.own_reserve
      end
      look(c, c, c)
      if first < last and c.own and c.never then never = never or again(c, c.own, c.own_reserve, c.free).never end
      return c.allowed, c.never and not takes_denied(c.limit, c) and (never or first == last)
    end

    -- charge_if charges c if pays is true, or if its limit charges denied requests. Otherwise it changes only
    -- the clock of the state, and the denials that a penalty counts. never means that the group can never be
    -- charged; such a denial does not count.
    local function charge_if(c, pays, never)
      local l, charges = c.limit, charges_denied(c.limit, c)
      if pays or charges or (not never and l.after > 0 and not c.allowed and not c.never and not c.free) then
        take_one(c)
      elseif not never then
        remember(c, kept_of(l, c.phase, state[c.key], c), c.dry_run or c.free)
      end
      if pays or not c.allowed then return end
      if not charges then
        local is = {}
        take_counted(l, c.phase, state[c.key], { cost = 0, max_wait = 0, of = 0 }, is, true)
        c.value, c.remaining, c.reset, c.timed = is.value, is.remaining, is.reset, is.timed
        c.wait, c.lost = 0, 0
      elseif not c.dry_run then
        c.retry = again(c, c.cost, c.reserve, true).retry -- until it is allowed, not until it is after another denial
      end
    end

    -- take_all decides the group charges[first..last]: it charges all of them, or none. Charges whose field instead is
    -- true, and that follow each other, form a row. The charge behind the row is its alternative. take_all makes either
    -- the charges of the row or the alternative. It returns whether the group was charged.
    function take_all(charges, first, last)
      local all, never, at, free = true, false, first, false
      for i = first, last do
        local c = charges[i]
        free = free or c.cost < 0 or (c.own and c.own < 0)
      end
      for i = first, last do charges[i].free = free or charges[i].free end
      while at <= last do
        local to = alternatives(charges, at, last)
        local allowed, is_never = peek(charges, at, to)
        all, never, at = all and allowed, never or is_never, to + 1
      end
      at = first
      while at <= last do
        local to = alternatives(charges, at, last)
        local c, within = charges[to], allow(charges, at, to - 1)
        for i = at, to - 1 do charge_if(charges[i], all and within, never) end
        if at == to or not within or c.own then charge_if(c, all, never) end
        if at < to and c.own and not c.allowed then
          -- The sidecar combines the retry time of the own cost with those of the row, because times in windows of different
          -- calendars cannot be compared here.
          local is = again(c, c.own, c.own_reserve, c.free)
          if c.never and not is.never then c.never, c.retry = false, 0 end
          c.wait, c.lost = is.retry, is.never and 1 or 0
        end
        at = to + 1
      end
      return all
    end
  end

  -- Limits and charges as they are sent ------------------------------------------------------------

  local limits, at = {}, 1
  while at <= #ARGV[2] do
    local l, flags = {}
    l.kind, flags, l.capacity, l.max_reserved, l.rate, l.period, l.p, l.q, l.v,
      l.tick, l.initial, l.p1, l.v1, at = unpack_at('<ddddddddddddd', ARGV[2], at)
    l.settles, flags = flags % 128 >= 64, flags % 32
    if l.settles and not peaked then peaked, charged, room_since, push = with_peaks() end
    l.overdraw, l.takes_denied = flags % 2 == 1, floor(flags / 2) % 2 == 1
    l.per_request = floor(flags / 4) % 2 == 1
    l.clears, l.charges_denied = l.takes_denied or l.per_request, l.takes_denied or l.overdraw
    if l.kind == WINDOW then l.length, l.p, l.q, l.v = l.period, l.clears and EXACT or l.rate, 1, l.capacity end
    l.after = 0
    if l.settles then
      l.max_debt, l.open_for, at = unpack_at('<dd', ARGV[2], at)
      if l.open_for == 0 then l.open_for = nil end
    end
    if flags >= 16 then l.after, l.block, l.longest_block, at = unpack_at('<ddd', ARGV[2], at) end
    if floor(flags / 8) % 2 == 1 then
      local e = {}
      l.calendar, l.first, l.longest, e[1], e[2], e[3], e[4], e[5], at = unpack_at('<dddddddd', ARGV[2], at)
      if now < e[2] or now + STEP_BACK >= e[5] then return answers[1] end
      l.edges = e
      l.window = window_of(l, 0, now)
    end
    limits[#limits + 1] = l
  end

  -- read reads the charge at pos into c, and returns the position of the next one.
  local function read(c, pos)
    local what
    c.key, what, c.cost, c.phase, pos = unpack_at('<dddd', blob, pos)
    local flags = floor(what / 1048576)
    c.max_wait, c.of = 0, 0
    if floor(flags / 2) % 2 == 1 then c.max_wait, c.of, pos = unpack_at('<dd', blob, pos) end
    c.limit, c.more, c.reserve = limits[what % 1048576], flags % 2 == 1, floor(flags / 4) % 2 == 1
    c.dry_run, c.raw = floor(flags / 8) % 2 == 1, floor(flags / 16) % 2 == 1
    c.settle, c.instead = flags % 64 >= 32, flags % 128 >= 64
    c.own, c.own_reserve, c.free, c.open = nil, flags % 512 >= 256, flags % 1024 >= 512, flags >= 2048
    if flags % 256 >= 128 then c.own, pos = unpack_at('<d', blob, pos) end
    if flags % 2048 >= 1024 then c.slot, c.op, c.ttl, pos = unpack_at('<c17Bd', blob, pos) end
    return pos
  end

  -- answer appends the decision on c to answers, in the form that the sidecar reads: flags and five doubles.
  local function answer(c)
    n = n + 1
    local flags = (c.allowed and 1 or 0) + (c.never and 2 or 0) + (c.timed and 0 or 16)
      + (c.blocked > 0 and 32 or 0) + (c.lost > 0 and 4 or 0)
    local last = c.blocked > 0 and c.blocked or c.lost > 0 and c.lost or c.wait
    answers[n] = pack('<Bddddd', flags, c.value, c.remaining, c.retry, c.reset, last)
  end

  -- A record is the answer to a group with an idempotency key: 32 bytes that identify the request, the time
  -- of the decision, and the answers.
  local fresh_records = {} -- the lifetimes, by key

  -- replay answers the group of the head, whose charges start at pos, from record. If record belongs to
  -- another request, the answer has flag 8. It returns the position of the next charge.
  local function replay(head, record, pos)
    local one, bytes = {}, 0
    repeat
      pos, bytes = read(one, pos), bytes + 41
    until not one.more
    local same = sub(record, 1, 32) == head.of and #record == 40 + bytes
    answers[n + 1] = pack('<Bddddd', same and 4 or 8, unpack_at('<d', record, 33), 0, 0, 0, 0)
    answers[n + 2] = same and sub(record, 41) or rep('\0', bytes)
    n = n + 2
    return pos
  end

  -- took reports whether the answer of group must be stored under its idempotency key, because something was
  -- consumed. all is whether the group was charged.
  local function took(group, all)
    for i = 1, #group do
      local g = group[i]
      if g.dry_run then return false end
      all = all or (charges_denied(g.limit, g) and g.cost > 0)
    end
    return all
  end

  -- decide answers the charge or the group at pos. answered is the number of answers so far. It returns the position
  -- of the next charge, and the number of answers then.
  local c = {}
  function decide(pos, answered)
    n, pos = answered, read(c, pos)
    local head = not c.limit and { key = c.key, ttl = c.cost, of = sub(blob, pos, pos + 31) }
    if head then
      pos = pos + 32
      local record = stored[head.key]
      if record then return replay(head, record, pos), n end
      n = n + 1
      answers[n] = rep('\0', 41)
      pos = read(c, pos)
    end
    local before, group, all = n
    if not c.more then
      take_one(c)
      answer(c)
      all = c.allowed
    else
      group = { c }
      repeat
        local more = {}
        pos = read(more, pos)
        group[#group + 1] = more
      until not more.more
      if not take_all then with_groups() end
      all = take_all(group, 1, #group)
      for i = 1, #group do answer(group[i]) end
    end
    if head and took(group or { c }, all) then
      stored[head.key] = head.of .. answers[1] .. table.concat(answers, '', before + 1, n)
      fresh_records[head.key] = head.ttl
    end
    if group then c = {} end
    return pos, n
  end

  -- settle writes the records, and prepares the states for writing, except for logs.
  function settle()
    for k, ttl in pairs(fresh_records) do call('PSETEX', names[k], ttl, stored[k]) end
    for k in pairs(dirty) do
      if not state[k].log then save(k) end
    end
  end

  -- write_logs writes the sliding logs that were changed. Logs that only denied live for at least as long as after a charge:
  -- they may have been written under a shorter period. Redis 6.2 does not support GT; there they live for exactly as long.
  function write_logs()
    for k in pairs(dirty) do
      local s = state[k]
      if s.log then log_write(s.log, lifetime(dirty[k], s), s.denials and 'd' .. pack_denials(s.denials)) end
    end
    for k, l in pairs(denied_logs) do
      local s = state[k]
      if not dirty[k] and log_size(s.log) > 0 then
        local ttl = lifetime(l, s)
        local reply = redis.pcall('PEXPIRE', s.log.key, ttl, 'GT')
        if type(reply) == 'table' and reply.err then call('PEXPIRE', s.log.key, ttl) end
      end
    end
  end
end

if state then settle() end

-- A key may live up to an eighth longer than necessary, so that few lifetimes must be converted to strings.
-- The strings of the last two lifetimes are reused: a bucket and the record of its settlement alternate.
-- A lifetime that is no such number comes from a spoiled value. It must not fail, because other keys are written already.
local to, text, other, other_text = 0, '86400000', 0, '86400000'
for i = 1, #names do
  local ms = lives[i]
  if ms then
    if ms > to or to > ms * 1.125 then
      to, text, other, other_text = other, other_text, to, text
      if ms > to or to > ms * 1.125 then
        to = math.max(1, math.min(ms + (ms - ms % 16) / 16, 9007199254740992))
        text = string.format('%d', to)
      end
    end
    call('PSETEX', names[i], text, stored[i])
  end
end
if state then write_logs() end
if write_slots then write_slots() end
return table.concat(answers)
