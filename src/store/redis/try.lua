-- TRY: whether the other scripts have all the rights that they need.  If a
-- claim could be made, but its outcome not be written, it would be executed
-- again.
--
--     ARGV     1 a key of the zone, 2 the command to publish with
--
-- "O": they have; "W": they can do without the named right, but then waiting
-- takes longer; "N": the named right is missing.

local key, lacks = ARGV[1], {}

if not redis.acl_check_cmd then
    return { 'N', 'it is older than Redis 7.0' }
end

-- a renamed command is an error here

local function may(...)
    local known, allowed = pcall(redis.acl_check_cmd, ...)
    return known and allowed
end

for _, command in ipairs({
    { 'TIME' }, { 'GET', key }, { 'GETRANGE', key, '0', '1' },
    { 'SET', key, '', 'PX', '1' }, { 'PEXPIRE', key, '1' },
    { 'EVALSHA', '', '1', key }
}) do
    if not may(unpack(command)) then
        lacks[#lacks + 1] = command[1]
    end
end

if #lacks > 0 then
    return { 'N', 'its user may not ' .. table.concat(lacks, ', ') .. ' "'
                  .. key .. '"' }
end

if not may(ARGV[2], key, '') then
    return { 'W', ARGV[2] }
end

return { 'O' }
