-- What the scripts share: a record, how it is read and written.  util/embed
-- puts this file before each of them.  It runs no command by itself.
--
-- A record is a head of 144 bytes, and its response.  Its states:
--
--     P  pending      the status is 1 if it was in doubt before
--     D  done
--     N  not kept
--     U  in doubt     the lease is 1 if it was so before its claim
--     F  forgotten    it was pending, and its owner does not know yet
--     R  released     no record any more; the status is 1 if an operator forgot
--                     an outcome
--
-- A claim is named by its instance and its sequence.  Upstreams know it by its
-- fence, which is made here: higher than that of any earlier claim of the
-- token, as far as this server knows (for that F and R stay for a minute), and
-- rising with this server's clock, in microseconds.
--
-- All times are this server's, in milliseconds.  Times in ARGV are spans from
-- now on, but for "not after": that is this server's time, in microseconds.

local names = {
    'format', 'state', 'form', 'instance', 'sequence', 'fence', 'lease',
    'recorded', 'ends', 'window', 'status', 'replays', 'fingerprint',
    'identity', 'action', 'body', 'settings', 'mac'
}
local layout = '>c2c1I1c8I8I8I8I8I8I8I4I4c32c16c4c4c4c16'
local format, length = 'I2', 144
local fence_keep = 60000

local key, micros, now, msec = KEYS[1]
local fence = 0
local remains

local function unpacked(head)
    local values, record = { struct.unpack(layout, head) }, {}

    for i = 1, #names do
        record[names[i]] = values[i]
    end

    return record
end

local function packed(record)
    local values = {}

    for i = 1, #names do
        values[i] = record[names[i]]
    end

    return struct.pack(layout, unpack(values))
end

local function clock()
    local time = redis.call('TIME')

    micros = time[1] * 1000000 + time[2]
    now = math.floor(micros / 1000)
    msec = string.format('%.0f', now)
end

-- Whether this is the right server, and has not forgotten.  If the call is to
-- check that, its second key is the stamp, and its last two arguments are the
-- stamp's beginning and the least beat that it must have.  See stamp.lua.

local function is_expected()
    if not KEYS[2] then
        return true
    end

    local bytes, head = redis.pcall('GET', KEYS[2]), ARGV[#ARGV - 1]

    return type(bytes) == 'string' and string.sub(bytes, 1, #head) == head
           and tonumber(string.match(bytes, '^ (%d+)', #head + 1) or 0)
               >= tonumber(ARGV[#ARGV])
end

local function too_late(not_after)
    return micros > tonumber(not_after)
end

-- The key's record, or nil, and the bytes that it was read from.  The third
-- value is a final answer: the server is the wrong one, or the value is no
-- record.  Sets `fence`, and `remains` to a released record.

local function read(...)
    if not is_expected() then
        return nil, nil, { 'I', msec }
    end

    local bytes = redis.pcall(...)

    if type(bytes) == 'table' and not string.find(bytes.err, '^WRONGTYPE') then
        return nil, nil, bytes
    end

    if not bytes or bytes == '' then
        return nil
    end

    if type(bytes) == 'table' or #bytes < length
       or string.sub(bytes, 1, #format) ~= format
    then
        return nil, nil, { 'V', msec }
    end

    local record = unpacked(bytes)

    fence = record.fence

    if record.state == 'R' then
        remains = record
        return nil
    end

    -- a key may outlive its record's window by a few milliseconds

    if string.find(record.state, '[DNU]') and record.ends <= now then
        return nil
    end

    return record, bytes
end

-- the command that puts a pending record in doubt, for a window from now on

local function in_doubt(record)
    record.state, record.lease, record.status = 'U', record.status, 0
    record.recorded = now
    record.ends = math.max(record.ends, now + record.window, now + 1)

    return 'SET', key, packed(record), 'PX',
           string.format('%.0f', record.ends - now)
end

-- the command that makes the token fresh; its next claim has a higher fence

local function released(record, forgotten)
    record.state, record.lease, record.status = 'R', 0, forgotten and 1 or 0

    return 'SET', key, packed(record), 'PX', fence_keep
end
