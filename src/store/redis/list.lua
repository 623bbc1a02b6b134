-- Some of the zone's records on this server, in no order.
--
--     ARGV     1 where to go on, 2 what the keys begin with, 3 about how many
--
-- The answer: where to go on next, or 0; and for each record its key, its head,
-- and the length of head and response.

clock()

local pattern = string.gsub(ARGV[2], '[*?%[%]^\\]', '\\%0') .. '*'
local found = redis.call('SCAN', ARGV[1], 'MATCH', pattern, 'COUNT', ARGV[3])
local listed = { 'O', msec, found[1] }

for i = 1, #found[2] do
    key = found[2][i]

    local is, bytes, answer = read('GETRANGE', key, 0, length - 1)

    if answer and answer.err then

        -- the cluster is down, as this node sees it

        if not string.find(answer.err, 'non local') then
            return answer
        end

        -- the key is moving to or from another node; or this is no master any
        -- more

        if string.find(redis.call('INFO', 'replication'), 'role:slave') then
            return redis.error_reply('READONLY it is no master any more')
        end
    end

    if is and is.state ~= 'F' then
        listed[#listed + 1] = key
        listed[#listed + 1] = bytes
        listed[#listed + 1] = string.format('%d', redis.call('STRLEN', key))
    end
end

return listed
