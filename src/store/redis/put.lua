#!lua flags=allow-oom
-- PUT: what a zone knows of a claim of its own: that it is pending yet, or what
-- became of it.  What happened is written whatever the memory.
--
--     ARGV     1 the head, 2 the response, 3 for how long it is leased, 4 how
--              long ago it was claimed, or recorded, 5 for how long it is bound
--              yet, 6 for how long the key is kept, 7 "k": this server has had
--              it, 8 how to publish, 9 not after, in microseconds
--
-- See claim.lua.

local key, head = KEYS[1], ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stamp = string.format('%.0f', now)
local what = string.sub(head, 3, 3)

local record = redis.pcall('GETRANGE', key, 0, 135)

if type(record) == 'table' and not string.find(record.err, '^WRONGTYPE') then
    return record
end

if record ~= '' and (type(record) == 'table' or #record < 136
                     or string.sub(record, 1, 2) ~= string.sub(head, 1, 2))
then
    return { 'V', stamp }
end

if now * 1000 > tonumber(ARGV[9]) then
    return { 'L', stamp }
end

if record ~= '' then
    local state = string.sub(record, 3, 3)
    local mine = string.sub(record, 5, 12) == string.sub(head, 5, 12)
    local older = struct.unpack('>I8', string.sub(record, 13, 20))
                  - struct.unpack('>I8', string.sub(head, 13, 20))

    if state == 'F' then

        if mine and older >= 0 then

            -- as long as its owner lives it is not fresh for him

            if what == 'P' then
                redis.call('PEXPIRE', key, ARGV[3])
            end

            return { 'S', stamp }
        end

    elseif not mine or older > 0 then
        return { 'S', stamp }

    elseif older == 0 and what == 'P' and state ~= 'P'
           and (state ~= 'U'
                or string.sub(record, 53, 56) ~= string.rep('\0', 4))
    then
        return { 'S', stamp }
    end
end

local lease = (what == 'P') and now + ARGV[3] or 0

redis.call('SET', key, string.sub(head, 1, 20)
           .. struct.pack('>I8I8I8', lease, now - ARGV[4], now + ARGV[5])
           .. string.sub(head, 45) .. ARGV[2], 'PX', ARGV[6])

if what ~= 'P' then
    redis.pcall(ARGV[8], key, '')
end

return { (record == '' and ARGV[7] == 'k') and 'T' or 'O', stamp }
