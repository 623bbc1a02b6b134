-- Some of a zone's records, in no order, as heads; of one server.
--
--     ARGV     1 where to go on, 2 what keys are to match, 3 about how many
--
-- What is told: where to go on then, or 0, and for each its key, its head, and
-- the length of all of it.

clock()

local found = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
local told = { 'O', stamp, found[1] }

for i = 1, #found[2] do
    key = found[2][i]

    local is, bytes, answer = read('GETRANGE', key, 0, length - 1)

    -- a key on its way here or from here; or this is no master any more

    if answer and answer.err and string.find(answer.err, 'non local')
       and string.find(redis.call('INFO', 'replication'), 'role:slave')
    then
        return redis.error_reply('READONLY it is no master any more')
    end

    if is and is.state ~= 'F' then
        told[#told + 1] = key
        told[#told + 1] = bytes
        told[#told + 1] = string.format('%d', redis.call('STRLEN', key))
    end
end

return told
