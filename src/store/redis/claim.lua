-- ASK: check, bind and claim in one step.
--
--     KEYS[1]  the token's key
--     ARGV     1 the head of the claim
--              2 claims of its instance with a lower sequence have no owner
--              3 the lease
--              4 how long ago the zone began to ask
--              5 the outcome will not end before
--              6 how long the key is kept
--              7 "r": take over a token in doubt, "o": claim no absent one
--              8 the command to publish with
--              9 not after
--
-- The script decides first, and writes at once and last.  The answer to a claim
-- is its fence.

clock()

local is, bytes, answer = read('GET', key)

if answer then
    return answer
end

local claim = unpacked(ARGV[1])
local take = not is or is.state == 'F'
local doubt = is and is.state == 'U'
local taken = is and is.state == 'P' and is.status ~= 0

if take and string.find(ARGV[7], 'o') then
    return { 'A', msec }
end

if is and is.state == 'P' then

    if is.instance ~= claim.instance then
        doubt = is.lease <= now

    elseif is.sequence < tonumber(ARGV[2])
           and is.sequence ~= claim.sequence
    then
        doubt = true

    elseif is.sequence <= claim.sequence then

        -- This claim, sent again, or the remains of an earlier one that its
        -- zone gave up.  A late claim does not get here: it finds the newer
        -- one, which has an owner.

        if taken and is.sequence ~= claim.sequence then
            doubt = true

        elseif string.find(ARGV[7], 'o') and not taken then
            return { 'A', msec }

        else
            take = true
        end
    end
end

if doubt and string.find(ARGV[7], 'r')
   and is.fingerprint == claim.fingerprint
   and (is.identity == claim.identity
        or is.identity == string.rep('\0', #is.identity))
then
    -- it is this claim's own doubt, or a later one's: the call comes late

    if is.instance == claim.instance and is.sequence >= claim.sequence then
        return { 'X', msec }
    end

    take = true
end

if take then
    if too_late(ARGV[9]) then
        return { 'L', msec }
    end

    -- The same claim sent twice is written twice, as WAIT counts writes, but
    -- keeps its fence.

    if is and is.state == 'P' and is.instance == claim.instance
       and is.sequence == claim.sequence
    then
        claim.fence = is.fence

    else
        claim.fence = math.max(fence + 1, micros)
    end

    claim.lease, claim.recorded = now + ARGV[3], now - ARGV[4]
    claim.ends = now + ARGV[5]
    claim.status = (doubt or taken) and 1 or 0

    redis.call('SET', key, packed(claim), 'PX', ARGV[6])

    return { (doubt or taken) and 'D' or 'C', msec,
             string.format('%.0f', claim.fence) }
end

-- the token is in doubt, even if there is no room to write that

if doubt and is.state == 'P' then
    if not redis.pcall(in_doubt(is)).err then
        redis.pcall(ARGV[8], key, '')
    end

    bytes = packed(is)
end

return { 'B', msec, bytes }
