-- ASK: check, bind and claim in one step.
--
--     KEYS[1]  the token's key
--     ARGV     1 the head of the claim, 2 the fence below which the claims of
--              its instance are nobody's, 3 for how long it is leased, 4 how
--              long it was asked for before, 5 before when its outcome will
--              not end, 6 for how long the key is kept, 7 "r" takes over what
--              is in doubt, "o" not what is absent, 8 how to publish, 9 not
--              after, in microseconds
--
-- All times are milliseconds, of this server; those in ARGV but the last one are
-- from now on.  A record is a head of 136 bytes, and its response:
--
--       1  format, "I1"         21  end of the lease       61  fingerprint
--       3  state, of PDNUF      29  claimed, or recorded   93  identity
--       4  fingerprint's form   37  end                   109  action
--       5  instance             45  window                113  body
--      13  fence                53  status                117  settings
--                               57  replays
--
-- P is pending, D done, N not kept, U in doubt; F was pending and is forgotten,
-- so that its owner can be told.  The status of what is pending is 1 if it was in
-- doubt before.  What is decided is written at once, and last.

local key, head = KEYS[1], ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stamp = string.format('%.0f', now)

local record = redis.pcall('GET', key)

if type(record) == 'table' and not string.find(record.err, '^WRONGTYPE') then
    return record
end

if record and (type(record) == 'table' or #record < 136
               or string.sub(record, 1, 2) ~= string.sub(head, 1, 2))
then
    return { 'V', stamp }
end

local state = record and string.sub(record, 3, 3) or 'A'

-- a key may outlive its window by a few milliseconds

if string.find(state, '[DNU]')
   and struct.unpack('>I8', string.sub(record, 37, 44)) <= now
then
    state = 'A'
end

local doubt = (state == 'U')
local take = (state == 'A' or state == 'F')
local taken = (state == 'P' and string.sub(record, 53, 56) ~= string.rep('\0', 4))

if take and string.find(ARGV[7], 'o') then
    return { 'A', stamp }
end

if state == 'P' then
    local fence = struct.unpack('>I8', string.sub(record, 13, 20))

    if string.sub(record, 5, 12) ~= string.sub(head, 5, 12) then
        doubt = struct.unpack('>I8', string.sub(record, 21, 28)) <= now

    elseif fence < struct.unpack('>I8', ARGV[2])
           and string.sub(record, 13, 20) ~= string.sub(head, 13, 20)
    then
        doubt = true

    elseif fence <= struct.unpack('>I8', string.sub(head, 13, 20)) then

        -- sent once more, or what is left of one that was given up; what comes
        -- late itself finds that of a newer one, which is its owner's

        if taken and string.sub(record, 13, 20) ~= string.sub(head, 13, 20) then
            doubt = true

        elseif string.find(ARGV[7], 'o') and not taken then
            return { 'A', stamp }

        else
            take = true
        end
    end
end

if doubt and string.find(ARGV[7], 'r')
   and string.sub(record, 61, 92) == string.sub(head, 61, 92)
   and (string.sub(record, 93, 108) == string.sub(head, 93, 108)
        or string.sub(record, 93, 108) == string.rep('\0', 16))
then
    if struct.unpack('>I8', string.sub(record, 13, 20))
       >= struct.unpack('>I8', string.sub(head, 13, 20))
    then
        return { 'X', stamp, string.sub(record, 1, 136) }
    end

    take = true
end

if take then
    if now * 1000 > tonumber(ARGV[9]) then
        return { 'L', stamp }
    end

    -- the same claim sent twice is written twice, as WAIT counts writes

    redis.call('SET', key, string.sub(head, 1, 20)
               .. struct.pack('>I8I8I8', now + ARGV[3], now - ARGV[4],
                              now + ARGV[5])
               .. string.sub(head, 45, 52)
               .. struct.pack('>I4', (doubt or taken) and 1 or 0)
               .. string.sub(head, 57), 'PX', ARGV[6])

    return { (doubt or taken) and 'D' or 'C', stamp }
end

if doubt and state == 'P' then
    local ends = struct.unpack('>I8', string.sub(record, 37, 44))
    local window = struct.unpack('>I8', string.sub(record, 45, 52))

    ends = math.max(ends, now + window, now + 1)

    record = string.sub(record, 1, 2) .. 'U' .. string.sub(record, 4, 20)
             .. struct.pack('>I8I8I8', 0, now, ends)
             .. string.sub(record, 45, 52) .. string.rep('\0', 4)
             .. string.sub(record, 57, 136)

    -- it is in doubt, whether or not there is room to say so

    if not redis.pcall('SET', key, record, 'PX',
                       string.format('%.0f', ends - now)).err
    then
        redis.pcall(ARGV[8], key, '')
    end
end

return { 'B', stamp, record }
