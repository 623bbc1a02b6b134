-- Some of a zone's records, in no order, as heads; of one server.
--
--     ARGV     1 the format, 2 where to go on, 3 what keys are to match,
--              4 about how many
--
-- What is told: where to go on then, or 0, and for each its key, its head, and
-- the length of all of it. See claim.lua.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stamp = string.format('%.0f', now)

local found = redis.call('SCAN', ARGV[2], 'MATCH', ARGV[3], 'COUNT', ARGV[4])
local told = { 'O', stamp, found[1] }

for i = 1, #found[2] do
    local key = found[2][i]
    local head = redis.pcall('GETRANGE', key, 0, 135)

    -- a key on its way here or from here; or this is no master any more

    if type(head) == 'table' and string.find(head.err, 'non local')
       and string.find(redis.call('INFO', 'replication'), 'role:slave')
    then
        return redis.error_reply('READONLY it is no master any more')
    end

    if type(head) == 'string' and #head == 136
       and string.sub(head, 1, 2) == ARGV[1]
       and string.sub(head, 3, 3) ~= 'F'
       and (string.sub(head, 3, 3) == 'P'
            or struct.unpack('>I8', string.sub(head, 37, 44)) > now)
    then
        told[#told + 1] = key
        told[#told + 1] = head
        told[#told + 1] = string.format('%d', redis.call('STRLEN', key))
    end
end

return told
